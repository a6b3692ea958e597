"""Values as text, the same in tables and in Markdown: numbers, shapes and marks; and letters for what is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookcli.table import Column, Kind, Row
from hookcli.table.columns import declared
from hookcli.table.folding import times
from hookcli.table.marks import mark
from hookcli.table.meta import Meta


def listed(names: Sequence[object], most: int = 5, between: str = ", ") -> str:
    """The first names or numbers, and how many more there are: a, b and 3 more."""
    return between.join(map(str, names[:most])) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def number(value: float | None) -> str:
    """Four significant digits: 0.01234, 12.34, 1.234e-07."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    size = float(f"{abs(value):.3e}")  # rounded, so that 0.99999 is 1.000 and not 1.0000
    if not 1e-3 <= size < 1e5:
        return f"{value:.3e}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(size)))}f}"


def quantity(value: int | None) -> str:
    """A large count with an SI prefix: 4.089 G."""
    if value is None:
        return "-"
    if value < 1000:
        return str(value)
    power = min(int(math.log10(value)) // 3, 5)
    if round(value / 1000**power, 3) >= 1000 and power < 5:
        power += 1
    return f"{value / 1000**power:.4g} {' KMGTP'[power]}"


def macs(value: int) -> str:
    """A number of multiply-accumulates: 4.089 GMACs, 512 MACs."""
    return f"{quantity(value)}{' ' * (value < 1000)}MACs"


def at_setting(meta: Meta) -> str:
    """The batch and the mode that figures depend on, as far as they are known: ` at batch 1, eval`."""
    mode = meta.get("mode")
    if "batch" in meta and "batches" not in meta:
        return f" at batch {meta['batch']}{f', {mode}' if mode else ''}"
    return f" in {mode} mode" if mode else ""


def size(value: float | None) -> str:
    """Bytes with a binary prefix: 12.5 MiB."""
    if value is None or not math.isfinite(value):
        return number(value)
    if value < 0:
        return f"-{size(-value)}"
    power = min(int(math.log2(value)) // 10, 4) if value >= 1 else 0
    return f"{value / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def shape(value: Any) -> str:
    """Write a shape as 10x3x224x224, several shapes next to each other, and the shape of one number as "scalar"."""
    if value is None:
        return "-"
    if value and isinstance(value[0], (list, tuple)):
        return ", ".join(shape(part) for part in value)
    return "x".join("*" if size < 0 else str(size) for size in value) or "scalar"


def _shapes(row: Row, name: str) -> str:
    """Write a shape, with the names of keyword arguments; of calls with several shapes each, or the first and last."""
    each = row.get(f"{name}s")
    if row.get(name) is None and each:
        texts = [shape(one) for one in (each if len(each) <= _SHAPES else (each[0], each[-1]))]
        return (" | " if len(each) <= _SHAPES else " … ").join(texts)
    names = row.get("input_names") if name == "input_shape" else None
    if not names or row.get(name) is None:
        return shape(row.get(name))
    parts = row[name] if names[1:] else [row[name]]
    return ", ".join(f"{key}={shape(part)}" if key else shape(part) for key, part in zip(names, parts, strict=True))


_SHAPES = 3  # shapes of one module's calls that a cell lists


def cell(row: Row, column: Column | str) -> str:
    """The text of one cell."""
    column = declared(column) if isinstance(column, str) else column
    name, kind = column.name, column.kind
    value = row.get(name)
    if kind == Kind.SHAPE:
        return _shapes(row, name)
    if name == "mark":
        return mark(row)
    if name == "fqn":
        return f"{row.fqn or '(model)'}{times(row)}"
    if kind in (Kind.ELEMENTS, Kind.FAULTS):
        return share(row, column)
    if name == "file" and row.get("line"):
        return f"{value}:{row['line']}"
    if isinstance(value, bool):
        return name if value else ""
    if kind in _WRITTEN and (kind == Kind.SOURCE or not (value is None or isinstance(value, str))):
        return _WRITTEN[kind](value)
    return plain(value)


def plain(value: Any) -> str:
    """Write a value as its type is: 0.01234, 12,345, a, b and 3 more."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return listed(value, 3) if value else "-"
    return "-" if value is None else str(value)


def microseconds(value: float) -> str:
    """8.9, 1,669."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def ends(value: list[str]) -> str:
    """The first and the last of several names."""
    names = value or ["-"]
    return names[0] if len(names) == 1 else f"{names[0]} {'... ' if names[2:] else ''}{names[-1]}"


def duration(seconds: float) -> str:
    """0.25 s, 25 ms, or 250 µs."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def percent(value: float | None) -> str:
    """A share of 1 as 12.3%."""
    return "-" if value is None else f"{100 * value:.1f}%"


def cosine(value: float | None) -> str:
    """0.999986: six decimals, since its distance from 1 matters."""
    return number(value) if value is None or math.isnan(value) else f"{value:.6f}"


def loss(value: float | None) -> str:
    """A loss as text; NaN is a loss, - stands for none."""
    return "NaN" if value is not None and math.isnan(value) else number(value)


def figure(value: int | float | None) -> str:
    """The figure of a check: counts, which are integers, as 52 or 25.56 M, other figures as 0.3125."""
    if isinstance(value, int):
        return quantity(value) if abs(value) >= 1e5 else f"{value:,}"
    return number(value)


def setting(value: Any) -> str:
    """A setting of an optimizer as it is typed: 0.001, or 0.9, 0.999."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(setting, value))
    return "-" if value is None else f"{value:.6g}"


def source(value: str | None) -> str:
    """The line of a program with the last parts of its path, which tell it from others: …/models/resnet.py:92."""
    text = value or ""
    folder = text.find("/", len(text) + 1 - _SOURCE)
    return text if len(text) <= _SOURCE else f"…{text[folder if folder >= 0 else 1 - _SOURCE :]}"


_SOURCE = 28  # characters
_WRITTEN: Mapping[Kind, Callable[[Any], str]] = {
    Kind.QUANTITY: quantity,
    Kind.SHARE: percent,
    Kind.BYTES: size,
    Kind.BYTES_CHANGE: size,
    Kind.LOSS: loss,
    Kind.SOURCE: source,
    Kind.MICROSECONDS: microseconds,
    Kind.SECONDS: duration,
    Kind.SETTING: setting,
    Kind.SETTINGS: setting,
    Kind.NAMES: ends,
    Kind.FIGURE: number,
    Kind.COSINE: cosine,
    Kind.JUDGED: figure,
    Kind.NUMBERS: lambda numbers: ", ".join("-" if n is None else str(n) for n in numbers or ()) or "-",
}


def share(row: Row, column: Column) -> str:
    """Write counts as percentages of all elements, but NaN and Inf as counts, since one is one too many."""
    value, numel = row.get(column.name), row.get("numel")
    if value is None or numel == 0:
        return "-"
    if numel is None:  # not saved
        return f"{value:,}"
    if column.kind == Kind.FAULTS:
        return f"{value:,}" if value else ""
    if value in (0, numel):
        return "0" if value == 0 else "100%"
    return f"{min(max(100 * value / numel, 0.1), 99.9):.1f}%"


def clock(seconds: float) -> str:
    """A time that a person waited: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 100:
        return duration(seconds) if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 22nd."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number:,}{ending}"


def counted(number: int, what: str, several: str = "") -> str:
    """1 model, 2,000 models; `several`: the plural, if it is not a plain s."""
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


_LETTERS = 26


def letter(place: int) -> str:
    """The letters of a place from 0, as spreadsheets have them: A, B ... Z, AA, AB ..."""
    text = chr(ord("A") + place % _LETTERS)
    return text if place < _LETTERS else letter(place // _LETTERS - 1) + text
