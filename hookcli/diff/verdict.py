"""The verdict of a comparison: how much is beyond tolerance, where that begins, and what has no counterpart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hookcli.diff.align import Alignment, NamedPart, structure, structure_line
from hookcli.diff.origin import OUTPUT, WEIGHT, Origin, first_beyond, of_both, origin_of
from hookcli.diff.settings import Cause, ChangedSettings, causes, findings_of, sentences, settings_line
from hookcli.diff.tensor_rows import error_text
from hookcli.diff.tolerance import Tolerance
from hookcli.table import Finding, Report, Row
from hookcli.table.formatting import counted, number
from hookcli.table.meta import Meta
from hookcli.table.names import in_words, is_within, operator_owner

CHECK = "diff"


def judged(
    compared: Report,
    alignment: Alignment,
    tolerance: Tolerance,
    metas: Sequence[Meta],
    *,
    settings: Sequence[ChangedSettings] = (),
    identical: bool = False,
    origin: Origin | None = None,
) -> Report:
    """The report of a comparison with its verdict and findings: `metas` describe the two runs, its own `meta` both
    together, and `origin` is the origin if it is known from other rows than these.

    A run whose `meta` lacks `complete` ran to its end. `settings` has what differs in the settings of modules;
    `identical` says that all that was compared had the same bits.
    """
    changed = {module.fqn: module.text for module in settings}
    rows = [
        row.having({"reset": changed[row.fqn]}) if row.get("kind") == OUTPUT and row.fqn in changed else row
        for row in compared.rows
    ]
    meta = compared.meta
    origin = origin or origin_of(rows)
    differing = causes(settings, alignment, tolerance.settings)
    line = _verdict(rows, origin, identical, differing, _changed(alignment)) + _lost(rows, origin)
    if not meta.get("complete", True):
        line += ", until the run failed"
    elif not all(one.get("complete", True) for one in metas):
        line += ", as far as both runs went"
    return replace(
        compared,
        rows=rows,
        meta={**of_both(*metas), "rtol": tolerance.rtol, "atol": tolerance.atol, **meta},
        totals={**_totals(rows, alignment, differing), **compared.totals, "verdict": line},
        findings=[*findings_of(differing, CHECK), *_findings(rows, alignment, origin)],
    )


def _totals(rows: Sequence[Row], alignment: Alignment, differing: Sequence[Cause]) -> dict[str, Any]:
    """Count computed values, and separately parameters and buffers."""
    computed = [row for row in rows if row.get("kind") != WEIGHT]
    changed = {"added": alignment.added, "removed": alignment.removed, "renamed": alignment.renamed}
    lines = {"structure": structure_line(alignment), "settings": settings_line(differing)}
    return {
        "compared": sum(_is_compared(row) for row in computed),
        "beyond": sum(bool(row.get("beyond")) for row in computed),
        **{name: len(places) for name, places in changed.items() if places},
        **{name: line for name, line in lines.items() if line},
    }


def _is_compared(row: Row) -> bool:
    return row.get("change") not in ("added", "removed")


def _verdict(
    rows: Sequence[Row], origin: Origin | None, identical: bool, differing: Sequence[Cause], structure: str
) -> str:
    """The result in a line: what differs in the modules themselves, then how far what they compute is apart.

    A difference that other parts are the cause of, or that comes after the first one in what is computed, stands last.
    """
    leading = [cause for cause in differing if cause.acts and _leads(cause, rows, origin)]
    result = _result(rows, origin, identical, bool(leading)) + structure
    if not origin and not any(cause.severity for cause in leading) and not _apart(rows, identical):
        leading = []  # another class, which computes the same
    others = [cause for cause in differing if cause.severity and cause not in leading]
    if leading:
        result = result[:1].lower() + result[1:]
    return "; ".join(filter(None, (sentences(leading), result, sentences(others))))


def _leads(cause: Cause, rows: Sequence[Row], origin: Origin | None) -> bool:
    """True unless the first difference has its own cause, or comes before the modules of this one."""
    if origin is None:
        return True
    place = operator_owner(origin.fqn) or origin.fqn
    if place in cause.fqns:
        return True
    if origin.lone or _differing_weights(origin.first, rows):
        return False
    until = next((number for number, row in enumerate(rows) if row.fqn == place), len(rows))
    before = {row.fqn for row in rows[:until]}
    return any(fqn in before or is_within(fqn, place) for fqn in cause.fqns)


def _result(rows: Sequence[Row], origin: Origin | None, identical: bool, explained: bool) -> str:
    """The first difference beyond tolerance, or how close the two are; `explained`: a cause of differences is known."""
    computed = [row for row in rows if row.get("kind") != WEIGHT]
    if not any(_is_compared(row) for row in computed):
        return "Nothing compared"
    if origin:
        return _first_difference(rows, origin, explained)
    if not (differing := _apart(rows, identical)):
        what = "value" if any("a_l2" in row.values for row in computed) else "figure"
        return "Identical, bit for bit" if identical else f"Equal in every {what}"
    if not explained:
        furthest = max(differing, key=_times)
        return f"Within tolerance; furthest apart: {title(furthest, typed=False)}, {_error(furthest)}"
    worst = max(filter(_times, computed), key=_times, default=differing[0])
    what = "outputs" if all(row.get("kind") in (None, OUTPUT) for row in computed) else "all"
    return f"{what} within tolerance (worst: {title(worst, typed=False)}, {_times(worst):.2g} of it)"


def _first_difference(rows: Sequence[Row], origin: Origin, explained: bool) -> str:
    place, cause = title(origin.first, typed=False), _cause(origin, rows, explained)
    if cause and place.endswith(f"({origin.first.get('source')})"):  # an operator's line
        place = f"{place.removesuffix(')')}; {cause})"
    elif cause:
        place = f"{place} ({cause})"
    text = f"First difference: {origin.text(place)}{'; ' if origin.lone else ', '}{_error(origin.first)}"
    returned = [row for row in rows if not row.fqn and row.get("kind") == OUTPUT and _is_compared(row)]
    if returned and not any(row.get("beyond") for row in returned):
        text += "; the model's output is within tolerance"
    return text


def _lost(rows: Sequence[Row], origin: Origin | None) -> str:
    """Where values of both sides that are not finite begin: equal, and not well. Modules come before their parts."""
    lost = [row for row in rows if row.get("lost")]
    if not lost or (origin and origin.first.get("nonfinite")):
        return ""
    first = lost[0]
    while inner := next((row for row in lost if row.fqn != first.fqn and is_within(row.fqn, first.fqn)), None):
        first = inner
    return f"; both have NaN or Inf, first in {title(first, typed=False)}"


def _cause(origin: Origin, rows: Iterable[Row], explained: bool) -> str:
    """Name tensors of a module that differ; if no cause is known, that what it received does."""
    names = _differing_weights(origin.first, rows)
    differ = f"{' and '.join(names)} differ{'s' * (not names[1:])}" if names else ""
    innocent = not origin.lone and not explained and origin.first.get("received") == "differ"
    return "; ".join(filter(None, (differ, "its input already differs" if innocent else "")))


def weights_come_first(report: Report) -> bool:
    """True if the first module that differs has other weights, so that the comparison tells nothing of its code."""
    first = first_beyond(report.rows)
    return first is not None and bool(_differing_weights(first, report.rows))


def _differing_weights(first: Row, rows: Iterable[Row]) -> list[str]:
    """The names of the parameters and buffers beyond tolerance of the module whose output `first` compares.

    Differences in another dtype are left out: rounding explains them.
    """
    differing = (row for row in rows if row.get("kind") == WEIGHT and row.get("beyond") and first.get("kind") == OUTPUT)
    names = (row.fqn.rpartition(".") for row in differing if "→" not in (row.get("dtype") or ""))
    return [name for owner, _, name in names if owner == first.fqn]


def _times(row: Row) -> float:
    return row.get("times") or 0.0


def _apart(rows: Sequence[Row], identical: bool) -> list[Row]:
    return [] if identical else [row for row in rows if _times(row)]


def _error(row: Row) -> str:
    """How far apart two tensors or figures are, in words."""
    if "rel_l2" in row.values:
        return error_text(row)
    if row.get("differs"):
        return str(row["differs"])
    return f"{str(row['figure']).replace('_', ' ')} {text_of(row['a'])} → {text_of(row['b'])}"


def _changed(alignment: Alignment) -> str:
    """In parentheses, how many modules have other names or no counterpart, and operators none; "" if none."""
    alone = {"only in A": alignment.removed, "only in B": alignment.added}
    operators = {what: sum(place.is_operator for place in places) for what, places in alone.items()}
    modules = {"renamed": len(alignment.renamed)}
    modules |= {what: len(places) - operators[what] for what, places in alone.items()}
    parts = [
        f"{counted(number, noun)} {what}"
        for noun, counts in (("module", modules), ("operator", operators))
        for what, number in counts.items()
        if number
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _findings(rows: Sequence[Row], alignment: Alignment, origin: Origin | None) -> list[Finding]:
    """An error at the origin, which counts the rows beyond tolerance, and notes on the structure."""
    notes = [Finding(CHECK, "note", fqn, text) for fqn, text in structure(alignment)]
    if origin is None:
        return notes
    first = origin.first
    alike = [row for row in rows if (row.get("kind") == WEIGHT) == (first.get("kind") == WEIGHT)]
    others = sum(bool(row.get("beyond")) for row in alike) - 1
    message = f"{origin.text(title(first))}: {first['differs']}{f'; {others} more beyond tolerance' * bool(others)}"
    return [Finding(CHECK, "error", origin.fqn, message, first.get("times"), 1.0), *notes]


def title(row: Row, *, typed: bool = True) -> str:
    """A row's place in words: name, operator's line, (if `typed`) type, kind of gradient, path, batch, call, pass."""
    what = row.get("source") or (row.get("type") if typed else None)
    text = in_words(row.fqn) + (f" ({what})" if what else "")
    if row.get("kind") not in (None, "output", WEIGHT):
        text += f" {row['kind']}"
    text += f" {row['path']}" if row.get("path") else ""
    text += f", batch {row['batch']}" if row.get("batch") else ""
    text += f", call {row['call']}" if row.get("call") else ""
    return text + (f", pass {row['pass']}" if row.get("pass") else "")


def change(a: NamedPart | None, b: NamedPart | None) -> str:
    """The change of a module, for a row's `change`; "" if there is none."""
    if a is None or b is None:
        return "added" if a is None else "removed"
    if a.fqn != b.fqn:
        return f"renamed: {b.fqn or '(model)'}"
    return f"{a.type} → {b.type}" if a.type != b.type else ""


def text_of(value: Any) -> str:
    """A compared value as text for a message."""
    return number(value) if isinstance(value, float) else str(value)
