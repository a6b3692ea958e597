"""The first line: the tensors that lose too much, and the format in which they do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hookcli.capabilities.formats.layout import USUAL
from hookcli.table import Row
from hookcli.table.formatting import counted, listed
from hookcli.table.names import in_words

LEAST = 20.0
"""Decibels: the error is a tenth of the values' root mean square, as four bits cost normally distributed values."""
FURTHER = 6.0
"""Decibels: twice the error that the format costs normally distributed values."""
_FEW = 3
_BROKEN = (("nonfinite_values", "NaN or Inf", "finite"), ("beyond_float32", "Values beyond float32", "other"))


def verdict(rows: Sequence[Row], formats: Sequence[str]) -> str:
    """The sentence on these rows."""
    if not rows:
        return "Nothing to round: no floating-point tensor of these modules was seen"
    for key, what, others in _BROKEN:
        broken = [row for row in rows if row[key]]
        if broken:
            place = f"{in_words(broken[0].fqn)} ({broken[0]['kind']})"
            several = f"; {counted(len(broken), 'tensor')} have some" if broken[1:] else ""
            return f"{what} in {place}: the figures are of the {others} values{several}"
    losing = {name: [row for row in rows if margin(row, name) < 0] for name in formats}
    return _costs(rows, losing) if any(losing.values()) else _tolerates(rows, formats)


def loses(rows: Sequence[Row], formats: Sequence[str]) -> bool:
    """True if some format keeps too little of one of these tensors."""
    return any(margin(row, name) < 0 for row in rows for name in formats)


def margin(row: Row | Mapping[str, Any], name: str) -> float:
    """The decibels that a tensor keeps above the limit of a format; where an outlier costs the other channels FURTHER
    or more, those that they keep."""
    least = min(LEAST, USUAL[name] - FURTHER)
    return _figure(row, name) - least


def note_on(values: Mapping[str, Any], formats: Sequence[str]) -> Mapping[str, str]:
    """The note of a row: the formats in which an outlier leaves too little of the other channels."""
    kept = {name: _others(values, name) for name in formats}
    each = [f"{name} {left:.1f} dB" for name, left in kept.items() if left < min(LEAST, USUAL[name] - FURTHER)]
    return {"note": f"{_outside(values)}: {', '.join(each)}"} if each else {}


def _outside(row: Row | Mapping[str, Any]) -> str:
    """Words on the channels that are left out: outside channel 5, the largest."""
    if row["outliers"] > 1:
        return f"outside {row['outliers']} channels, of which {row['outlier']} is the largest"
    return f"outside channel {row['outlier']}, the largest"


def _others(row: Row | Mapping[str, Any], name: str) -> float:
    costly = (row.get(f"outlier_cost_{name}") or 0.0) >= FURTHER
    return float(row[f"others_{name}"]) if costly else math.inf


def _tolerates(rows: Sequence[Row], formats: Sequence[str]) -> str:
    """No tensor loses too much; the tensor and the format that are nearest to it; of a few formats, each one's least.

    It says nothing on the output, to which the errors of all layers add up.
    """
    lowest = {name: min(rows, key=lambda row: margin(row, name)) for name in formats}
    worst = min(formats, key=lambda name: margin(lowest[name], name))
    none = "No tensor loses too much" if rows[1:] else "The tensor does not lose too much"
    every = f"any of {len(formats)} formats" if formats[1:] else worst
    least = _figure(lowest[worst], worst)
    if math.isinf(least):
        return f"{none} in {every}: no value changes"
    place = f"{in_words(lowest[worst].fqn)} ({lowest[worst]['kind']})"
    text = f"{none} in {every}; the lowest is {least:.1f} dB, {place} in {worst}"
    others = [name for name in formats if name != worst] if len(formats) <= _FEW else []
    least_of = {name: _figure(lowest[name], name) for name in others}
    also = [f", {name} {left:.1f} dB ({USUAL[name]:.1f})" for name, left in least_of.items() if math.isfinite(left)]
    return f"{text} (normally distributed values: {USUAL[worst]:.1f}){''.join(also)}"


def _figure(row: Row | Mapping[str, Any], name: str) -> float:
    """The decibels that a format keeps of a tensor, or of the channels that an outlier costs most."""
    return float(min(row[f"sqnr_{name}"], _others(row, name)))


def _costs(rows: Sequence[Row], losing: Mapping[str, Sequence[Row]]) -> str:
    """The format with a tensor that lies furthest below its limit; the others by the number of such tensors.

    Of a few formats, as one asks for to compare them, each has its figure.
    """
    lowest = {name: min(rows, key=lambda row: margin(row, name)) for name in losing}
    worst = min(losing, key=lambda name: margin(lowest[name], name))
    kinds = Counter(row["kind"] for row in losing[worst])
    each = ", ".join(counted(number, kind) for kind, number in kinds.items())
    usual = f"normally distributed values: {USUAL[worst]:.1f}"
    first = f"{worst} {_kept(lowest[worst], worst, usual)}: too little for {each} (of {counted(len(rows), 'tensor')})"
    if len(losing) > _FEW:
        also = [f"{name} ({len(some)})" for name, some in losing.items() if some and name != worst]
        return f"{first}{f'; also in {listed(also, 4)}' if also else ''}"
    for name in (name for name in losing if name != worst):
        few = f"too little for {len(losing[name])}"
        first += f"; {name} {_kept(lowest[name], name, few) if losing[name] else 'tolerates all'}"
    return first


def _kept(row: Row, name: str, beside: str) -> str:
    """The ratio that a format keeps of a tensor, in words, and in parentheses what is to be said beside it."""
    left, outlier = row[f"sqnr_{name}"], ""
    if _others(row, name) < left:
        left, outlier = _others(row, name), f" {_outside(row)}"
    of = f"{in_words(row.fqn)} ({row['kind']}){outlier}"
    return f"makes some values of {of} infinite" if math.isinf(left) else f"keeps only {left:.1f} dB of {of} ({beside})"
