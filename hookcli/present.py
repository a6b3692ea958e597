"""How values read: numbers, shapes and marks as text, the same in tables and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookcli.report import Report, Row

COUNTS = ("zeros", "nan", "inf")
FIGURES = ("mean", "std", "min", "max", "l2")


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


def size(value: int | None) -> str:
    """Bytes with a binary prefix: 12.5 MiB."""
    if value is None:
        return "-"
    power = min(int(math.log2(value)) // 10, 4) if value else 0
    return f"{value / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


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
    if name in COUNTS:
        return share(row, name)
    if name == "file" and row.get("line"):
        return f"{value}:{row['line']}"
    if isinstance(value, bool):
        return name if value else ""
    return _plain(name, value)


def _plain(name: str, value: Any) -> str:
    """A value by itself, written as its column's name asks."""
    if name.endswith("shape"):
        return shape(value)
    if name in _WRITTEN:
        return _WRITTEN[name](value)
    if name.removeprefix("out_") in FIGURES or isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)


def microseconds(value: float | None) -> str:
    """8.9, 1,669."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def ends(value: list[str] | None) -> str:
    """The first and the last of several names."""
    names = value or ["-"]
    return names[0] if len(names) == 1 else f"{names[0]} {'... ' if names[2:] else ''}{names[-1]}"


def seconds(value: float | None) -> str:
    """0.25 s, 25 ms, or 250 µs."""
    return "-" if value is None else duration(value)


def cosine(value: float | None) -> str:
    """0.999986: what is told of it is how far it is from 1."""
    return number(value) if value is None or math.isnan(value) else f"{value:.6f}"


def figure(value: int | float | None) -> str:
    """What a check compared: a count, which is an integer, as 52 or 25.56 M; anything else as everywhere: 0.3125."""
    if isinstance(value, int):
        return quantity(value) if abs(value) >= 1e5 else f"{value:,}"
    return number(value)


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "macs": quantity,
    **dict.fromkeys(("bytes", "kept", "bytes_before", "bytes_after"), size),
    "us": microseconds,
    "seconds": seconds,
    "fqns": ends,
    "cosine": cosine,
    "value": figure,
    "threshold": figure,
}


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
    said = [f"edited: {row.get('edited')}"] if row.get("edited") else []
    said += [str(row["change"])] if row.get("change") else []
    if row.get("beyond"):  # what is beyond tolerance without a figure is told
        said.append("beyond" if row.get("times") not in (None, math.inf) else str(row.get("differs")))
    note = str(row.get("note") or "")
    said += [note.removeprefix("beyond ") if row.get("beyond") else note] if note else []
    if row.stats:
        total = row.stats.numel
        said += [f"{row.stats.nan:,} NaN"] if row.stats.nan else []
        said += [f"{row.stats.inf:,} Inf"] if row.stats.inf else []
        said += ["all zero"] if total and row.stats.zeros == total else []
        said += ["empty"] if not total else []
    return ", ".join(said)


def duration(seconds: float) -> str:
    """0.25 s, 25 ms, or 250 µs."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def totals_line(report: Report) -> str:
    """The totals, exactly; of checks what they found."""
    if {"errors", "warnings", "checks"} <= report.totals.keys():
        return _verdict(report.totals)
    named = {"params": "parameters", "trainable": "trainable", "macs": "MACs", "stale_flags": "stale flags"}
    named |= {"tensor_bytes": "bytes of tensors", "archive_bytes": "bytes in all"}
    said = []
    for key, value in report.totals.items():
        if key == "weights":  # on a line of its own
            continue
        text = f"{value:,}" if isinstance(value, int) else number(value) if isinstance(value, float) else str(value)
        if key == "macs":
            text = f"{quantity(value)}MACs ({text})" if value >= 1000 else f"{text} MACs"
        elif key in ("order", "verdict", "structure"):
            said.append(str(value))
            continue
        elif key == "hooks" and isinstance(value, dict):
            text = "\n".join(_whole_step(hook, step) for hook, step in value.items() if step["buckets"] > 1)
        elif key == "kept_bytes":
            text = f"{size(value)} kept for backward"
        elif key.endswith("_us"):
            text = f"{key.removesuffix('_us')} {duration(value / 1e6)}"
        elif key == "param_bytes":
            text = f"{value / 2**20:,.1f} MiB"
        else:
            name = named.get(key, key)
            text = f"{text} {name.removesuffix('s') if value == 1 else name}"
        said.append(text)
    return "\n".join(filter(None, (" · ".join(filter(None, said)), report.totals.get("weights"))))


def _whole_step(hook: str, figures: Mapping[str, Any]) -> str:
    """What a communication hook made of all buckets of a step."""
    sent = "uncounted" if figures["bytes_after"] is None else size(figures["bytes_after"])
    error = f"error {number(figures['relative_l2'])}, cosine {number(figures['cosine'])}"
    return f"{hook}, all buckets of step {figures['step']}: {size(figures['bytes_before'])} to {sent}, {error}"


def _verdict(totals: Mapping[str, Any]) -> str:
    counts = {word: totals[f"{word}s"] for word in ("error", "warning")}
    found = [f"{number} {word}{'s' * (number > 1)}" for word, number in counts.items() if number]
    well = "All well" if totals["checks"] else "Nothing judged"
    return f"{', '.join(found) or well}: {_counted(totals, 'check')} on {_counted(totals, 'module')}"


def _counted(totals: Mapping[str, Any], what: str) -> str:
    number = totals[f"{what}s"]
    return f"{number} {what}{'s' * (number != 1)}"


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
    said += [f"edited {edit}" for edit in meta.get("edits", ())]
    if "processes" in meta:
        how = f" ({meta['parallel']})" if meta.get("parallel") else ""
        said.append(f"{meta['processes']} processes{how}{_of_ranks(meta)}")
    said += [duration(meta["seconds"])] if "seconds" in meta else []
    if meta.get("complete") is False:
        said.append("incomplete: the run failed" if meta.get("error") else "incomplete")
    return " · ".join(said)


def _of_ranks(meta: Mapping[str, Any]) -> str:
    """Whose figures these are, where not all processes' together."""
    shown = meta.get("rank")
    if shown is None:
        return ""
    return f", rank {shown} shown" if isinstance(shown, int) else f", ranks {', '.join(map(str, shown))} shown"


def skipped_line(report: Report, most: int = 3) -> str:
    """What was not measured, grouped by reason, with an example of each; `most` reasons."""
    said = by_reason((item.reason, f"{item.fqn or '(model)'} {item.path}".rstrip()) for item in report.skipped)
    if len(said) > most:
        said[most:] = [f"and {len(said) - most} more reasons (--format json lists all)"]
    return "; ".join(said)


def by_reason(items: Iterable[tuple[str, str]]) -> list[str]:
    """Pairs of a reason and a name as a text per reason, with an example."""
    reasons: dict[str, dict[str, None]] = {}
    for reason, name in items:
        reasons.setdefault(reason, {})[name] = None
    more = {reason: f" and {len(names) - 1} more" if len(names) > 1 else "" for reason, names in reasons.items()}
    return [f"{next(iter(names))}{more[reason]}: {reason}" for reason, names in reasons.items()]
