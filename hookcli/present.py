"""How values read: numbers, shapes and marks as text, the same in tables and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hookcli.fold import View
from hookcli.report import STATS_KEYS, Column, Report, Row

COUNTS = ("zeros", "nan", "inf")
FIGURES = ("mean", "std", "min", "max", "l2")
# Columns that are worth their width only on a wide screen or on request, the first to go first.
_DISPENSABLE = (
    "index",
    "needed_by",
    "trainable",
    "dtype",
    "numel",
    "input_shape",
    "l2",
    "call",
    "kind",
    "type",
    "shape",
    "zeros",
)
_ON_REQUEST = ("index", "depth", "trainable")
_MARK = Column("mark", "")


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


def shape(value: Any) -> str:
    """10x3x224x224; several shapes beside each other; "scalar" for the shape of one number."""
    if value is None:
        return "-"
    if value and isinstance(value[0], (list, tuple)):
        return ", ".join(shape(part) for part in value)
    return "x".join("*" if size < 0 else str(size) for size in value) or "scalar"


def cell(row: Row, name: str) -> str:
    """The text of one cell."""
    value = row.get(name)
    if name == "mark":
        return mark(row)
    if name == "fqn":
        return f"{row.fqn or '(model)'}{_times(row)}"
    if name.endswith("shape"):
        return shape(value)
    if name in COUNTS:
        return share(row, name)
    if name == "macs":
        return quantity(value)
    if name in FIGURES or isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)


def _times(row: Row) -> str:
    merged = row.get("merged")
    if not merged:
        return ""
    return f" ({merged})" if row.get("kind") == "parameter" else f" x{merged}"


def share(row: Row, name: str) -> str:
    """A count of elements as a share of all: zeros in per cent, NaN and Inf as counts, since one is one too many."""
    value, numel = row.get(name), row.get("numel")
    if value is None or not numel:
        return "-"
    if name != "zeros":
        return f"{value:,}" if value else ""
    if value in (0, numel):
        return "0" if value == 0 else "100%"
    return f"{min(max(100 * value / numel, 0.1), 99.9):.1f}%"


def mark(row: Row) -> str:
    """What is wrong with a row, in words, so that it reads without colour."""
    said = [str(row.get("note"))] if row.get("note") else []
    if row.stats:
        total = row.stats.numel
        said += [f"{row.stats.nan:,} NaN"] if row.stats.nan else []
        said += [f"{row.stats.inf:,} Inf"] if row.stats.inf else []
        said += ["all zero"] if total and row.stats.zeros == total else []
        said += ["empty"] if not total else []
    return ", ".join(said)


def reads_left(report: Report, name: str) -> bool:
    """Whether a column holds words, which align left, rather than figures."""
    return name == "mark" or any(isinstance(row.get(name), str) for row in report.rows)


def continues(row: Row, before: Row | None) -> bool:
    """Whether a row is a further tensor of the call that the row before it shows."""
    keys = ("fqn", "kind", "call", "pass")
    return before is not None and bool(row.get("path")) and all(row.get(key) == before.get(key) for key in keys)


def visible(report: Report, view: View) -> list[Column]:
    """The columns that say something: those asked for, else all but the ones that are on request or say nothing new."""
    if view.columns:
        return list(report.columns)
    chosen = [c for c in report.columns if c.name not in _ON_REQUEST and _speaks(report, c.name)]
    marked = any(mark(row) for row in report.rows)
    return [*chosen, _MARK] if marked else chosen


def _speaks(report: Report, name: str) -> bool:
    values = [row.get(name) for row in report.rows]
    if name in ("nan", "inf"):
        return False  # the mark says it, with the count
    if name in ("path", "call", "pass", "dtype"):
        return any(value not in (None, "", 0, "float32") for value in values)
    if name == "kind":
        return len(set(values)) > 1
    return any(value is not None for value in values) or name in STATS_KEYS


def fitted(columns: Sequence[Column], widths: dict[str, int], width: int | None) -> list[Column]:
    """The columns without those that do not fit, the most dispensable ones first."""
    if width is None:
        return list(columns)
    room = width + 2 - sum(widths[c.name] + 2 for c in columns if c.name not in _DISPENSABLE)
    dropped = set()
    for name in sorted(widths.keys() & set(_DISPENSABLE), key=_DISPENSABLE.index, reverse=True):
        if widths[name] + 2 <= room:
            room -= widths[name] + 2
        else:
            dropped.add(name)
    return [c for c in columns if c.name not in dropped]


def duration(seconds: float) -> str:
    """0.25 s, or 25 ms."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"


def totals_line(report: Report) -> str:
    """The totals, exactly."""
    named = {"params": "parameters", "trainable": "trainable", "macs": "MACs", "param_bytes": "bytes of parameters"}
    named |= {"tensor_bytes": "bytes of tensors", "archive_bytes": "bytes in all"}
    said = []
    for key, value in report.totals.items():
        text = f"{value:,}" if isinstance(value, int) else number(value) if isinstance(value, float) else str(value)
        if key == "macs":
            text = f"{quantity(value)}MACs ({text})" if value >= 1000 else f"{text} MACs"
        elif key == "param_bytes":
            text = f"{value / 2**20:,.1f} MiB"
        else:
            text = f"{text} {named.get(key, key)}"
        said.append(text)
    return " · ".join(said)


def run_line(report: Report) -> str:
    """One line about the run: model, input, device, mode, time."""
    meta = report.meta
    said = [report.model]
    said += [f"input {meta['input']}"] if meta.get("input") else []
    said += [str(meta[key]) for key in ("device", "dtype", "mode") if meta.get(key)]
    if "loss_value" in meta and meta["loss_value"] is not None:
        said.append(f"loss {meta['loss_value']:.4g} ({meta['loss']})")
    elif "backward_vector" in meta:
        said.append(f"vector-Jacobian product with {meta['backward_vector']}")
    said += [duration(meta["seconds"])] if "seconds" in meta else []
    said += ["incomplete: the run failed"] if meta.get("complete") is False else []
    return " · ".join(said)


def skipped_line(report: Report, most: int = 3) -> str:
    """What was not measured, grouped by reason, with an example of each; `most` reasons."""
    reasons: dict[str, dict[str, None]] = {}
    for item in report.skipped:
        reasons.setdefault(item.reason, {})[f"{item.fqn or '(model)'} {item.path}".rstrip()] = None
    said = []
    for reason, names in list(reasons.items())[:most]:
        rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
        said.append(f"{next(iter(names))}{rest}: {reason}")
    if len(reasons) > most:
        said.append(f"and {len(reasons) - most} more reasons (--format json lists all)")
    return "; ".join(said)
