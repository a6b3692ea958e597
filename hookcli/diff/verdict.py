"""The verdict of a comparison: how much is beyond tolerance, where that begins, and what has no counterpart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hookcli.diff.align import Alignment, NamedPart
from hookcli.diff.lone_operators import lone_before, named_alone
from hookcli.diff.settings import settings_line
from hookcli.diff.structure import structure, structure_line
from hookcli.diff.tolerance import Tolerance
from hookcli.report import Column, Finding, Report, Row, Skipped
from hookcli.report.formatting import counted, number
from hookcli.report.names import is_within

CHECK = "diff"
WEIGHT = "weight"
"""The `kind` of rows of parameters and buffers."""
OUTPUT = "output"
"""The `kind` of rows of what modules return."""
_NAMED = 3


def first_beyond(rows: Iterable[Row]) -> Row | None:
    """The first row beyond tolerance in the order of execution.

    A container comes before its parts in a report but returns after them, so a part that is beyond tolerance is first.
    A parameter or buffer is chosen only if nothing that was computed is beyond tolerance.
    """
    found = [row for row in rows if row.get("beyond")]
    beyond = [row for row in found if row.get("kind") != WEIGHT] or found
    first = beyond[0] if beyond else None
    for row in beyond[1:]:
        assert first is not None
        if is_within(row.fqn, first.fqn) and row.get("kind") == first.get("kind"):
            first = row
    return first


def report(
    rows: Sequence[Row],
    alignment: Alignment,
    tolerance: Tolerance,
    *,
    model: str,
    columns: Sequence[Column],
    metas: Sequence[Mapping[str, Any]],
    meta: Mapping[str, Any],
    skipped: Sequence[Skipped],
    weights: str = "",
    settings: Mapping[str, str] = MappingProxyType({}),
    identical: bool = False,
) -> Report:
    """Make the report of a comparison: `metas` describe the two runs, `meta` both together.

    A run whose `meta` lacks `complete` ran to its end. `weights` is the `weights_line` of a comparison of models, and
    `settings` has what differs in their modules' settings, by A's names; `identical` says that all that was compared
    had the same bits.
    """
    rows = [_with_settings(row, settings.get(row.fqn, "")) for row in rows]
    said = _verdict(rows, identical) + _changed(alignment, len(settings))
    if not meta.get("complete", True):
        said += ", until the run failed"
    elif not all(one.get("complete", True) for one in metas):
        said += ", as far as both runs went"
    return Report(
        probe="diff",
        model=model,
        columns=columns,
        rows=rows,
        meta=_both(*metas) | {"rtol": tolerance.rtol, "atol": tolerance.atol} | dict(meta),
        totals=_totals(rows, alignment, weights, settings) | {"verdict": said},
        skipped=skipped,
        findings=_findings(rows, alignment),
    )


def _with_settings(row: Row, changed: str) -> Row:
    """The row with the settings that differ, if it is of what the module returned."""
    return replace(row, values={**row.values, "reset": changed}) if changed and row.get("kind") == OUTPUT else row


def _totals(rows: Sequence[Row], alignment: Alignment, weights: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Count computed values, and separately parameters and buffers."""
    computed = [row for row in rows if row.get("kind") != WEIGHT]
    changed = {"added": alignment.added, "removed": alignment.removed, "renamed": alignment.renamed}
    said = {"structure": structure_line(alignment), "settings": settings_line(settings), "weights": weights}
    return {
        "compared": sum(_is_compared(row) for row in computed),
        "beyond": sum(bool(row.get("beyond")) for row in computed),
        **{name: len(places) for name, places in changed.items() if places},
        **{name: line for name, line in said.items() if line},
    }


def _is_compared(row: Row) -> bool:
    return row.get("change") not in ("added", "removed")


def _verdict(rows: Sequence[Row], identical: bool) -> str:
    """The result in a line: the first difference beyond tolerance, or how close the two are."""
    if not any(_is_compared(row) for row in rows if row.get("kind") != WEIGHT):
        return "Nothing compared"
    if first := first_beyond(rows):
        return f"First difference: {_with_cause(first, rows)}, {_error(first)}"
    if identical:
        return "Identical, bit for bit"
    furthest = max(rows, key=_times)
    if not _times(furthest):
        return "Equal in every figure" if "a_l2" not in furthest.values else "Equal in every value"
    return f"Within tolerance; furthest apart: {title(furthest, typed=False)}, {_error(furthest)}"


def _with_cause(first: Row, rows: Sequence[Row]) -> str:
    """A place in words, and its cause in parentheses: with an operator's line, if the place ends with that."""
    place, cause = title(first, typed=False), _cause(first, rows)
    if not cause:
        return place
    line = f"({first.get('source')})"
    return f"{place.removesuffix(')')}; {cause})" if place.endswith(line) else f"{place} ({cause})"


def _cause(first: Row, rows: Iterable[Row]) -> str:
    """Name settings and tensors of a module that differ, and operators before it on one side alone; "" if none do."""
    names = _differing_weights(first, rows)
    differ = f"{' and '.join(names)} differ{'s' * (not names[1:])}" if names else ""
    lone = lone_before(first, [row for row in rows if row.get("kind") in (None, OUTPUT)])[:_NAMED]
    return "; ".join(filter(None, (first.get("reset"), differ, named_alone(lone))))


def weights_come_first(report: Report) -> bool:
    """True if the first module that differs has other weights, so that the comparison tells nothing of its code."""
    first = first_beyond(report.rows)
    return first is not None and bool(_differing_weights(first, report.rows))


def _differing_weights(first: Row, rows: Iterable[Row]) -> list[str]:
    """The names of the parameters and buffers beyond tolerance of the module whose output `first` compares.

    Those of another dtype are left out: rounding explains them.
    """
    own = (row for row in rows if row.get("kind") == WEIGHT and row.get("beyond") and first.get("kind") == OUTPUT)
    names = (row.fqn.rpartition(".") for row in own if "→" not in (row.get("dtype") or ""))
    return [name for owner, _, name in names if owner == first.fqn]


def _times(row: Row) -> float:
    return row.get("times") or 0.0


def _error(row: Row) -> str:
    """How far apart two tensors or figures are, in words."""
    relative = row.get("rel_l2")
    if relative is not None and math.isfinite(relative):
        return f"relative error {relative:.2g}"
    if row.get("differs"):
        return str(row["differs"])
    return f"{str(row['figure']).replace('_', ' ')} {text_of(row['a'])} → {text_of(row['b'])}"


def _changed(alignment: Alignment, reset: int) -> str:
    """In parentheses, how many modules have other names, settings or no counterpart, and operators none; "" if none."""
    alone = {"only in A": alignment.removed, "only in B": alignment.added}
    operators = {what: sum(place.is_operator for place in places) for what, places in alone.items()}
    modules = {"renamed": len(alignment.renamed), "with other settings": reset}
    modules |= {what: len(places) - operators[what] for what, places in alone.items()}
    said = [
        f"{counted(number, noun)} {what}"
        for noun, counts in (("module", modules), ("operator", operators))
        for what, number in counts.items()
        if number
    ]
    return f" ({', '.join(said)})" if said else ""


def _findings(rows: Sequence[Row], alignment: Alignment) -> list[Finding]:
    """An error at the first row beyond tolerance, which counts the others, and notes on the structure."""
    notes = [Finding(CHECK, "note", fqn, text) for fqn, text in structure(alignment)]
    first = first_beyond(rows)
    if first is None:
        return notes
    alike = [row for row in rows if (row.get("kind") == WEIGHT) == (first.get("kind") == WEIGHT)]
    others = sum(bool(row.get("beyond")) for row in alike) - 1
    said = f"{title(first)}: {first['differs']}" + (f"; {others} more beyond tolerance" if others else "")
    return [Finding(CHECK, "error", first.fqn, said, first.get("times"), 1.0), *notes]


def weights_line(rows: Sequence[Row], compared: int) -> str:
    """A line on the parameters and buffers: `compared` in number, of which `rows` differ; "" if there are none."""
    differ = [row for row in rows if row.get("change") not in ("added", "removed")]
    what = "parameters and buffers"
    if not differ:
        return f"{compared:,} {what} equal" if compared else ""
    beyond = sum(bool(row.get("beyond")) for row in differ)
    ordered = sorted(differ, key=lambda row: -row.get("times", math.inf))
    named = ", ".join(f"{row.fqn} {_apart(row)}" for row in ordered[: _NAMED if not differ[_NAMED:] else 1])
    most = "most of all " if differ[_NAMED:] else ""
    limit = f", {beyond:,} beyond tolerance" if beyond else ""
    return f"{len(differ):,} of {compared:,} {what} differ{limit}: {most}{named}"


def _apart(row: Row) -> str:
    if "max_abs" not in row.values or row["nonfinite"]:
        return str(row["differs"])
    relative = "" if math.isinf(row["rel_l2"]) else f", relative l2 {number(row['rel_l2'])}"
    return f"by {number(row['max_abs'])} at most{relative}"


def title(row: Row, *, typed: bool = True) -> str:
    """A row's place in words: name, operator's line, (if `typed`) type, kind of gradient, path, batch, call, pass."""
    told = row.get("source") or (row.get("type") if typed else None)
    said = f"{row.fqn or '(model)'}" + (f" ({told})" if told else "")
    if row.get("kind") not in (None, "output", WEIGHT):
        said += f" {row['kind']}"
    said += f" {row['path']}" if row.get("path") else ""
    said += f", batch {row['batch']}" if row.get("batch") else ""
    said += f", call {row['call']}" if row.get("call") else ""
    return said + (f", pass {row['pass']}" if row.get("pass") else "")


def change(a: NamedPart | None, b: NamedPart | None) -> str:
    """The change of a module, for a row's `change`; "" if there is none."""
    if a is None or b is None:
        return "added" if a is None else "removed"
    if a.fqn != b.fqn:
        return f"renamed: {b.fqn or '(model)'}"
    return f"{a.type} → {b.type}" if a.type != b.type else ""


def _both(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """The `meta` of a comparison: what both runs share, `A → B` if texts differ, and the whole of each side."""
    merged = {key: value if value == b.get(key) else _arrow(value, b.get(key)) for key, value in a.items()}
    kept = {key: value for key, value in merged.items() if value is not None}
    return {**kept, "a": dict(a), "b": dict(b)}


def _arrow(a: Any, b: Any) -> str | None:
    return f"{a} → {b}" if isinstance(a, str) and isinstance(b, str) else None


def text_of(value: Any) -> str:
    """A compared value as text for a message."""
    return number(value) if isinstance(value, float) else str(value)
