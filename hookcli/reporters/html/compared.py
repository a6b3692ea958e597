"""A comparison as its page shows it: the verdicts in words, and each difference beside the rows of both sides."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookcli.table import Finding, Kind, Merge, Report, Row
from hookcli.table.formatting import number

_OUTPUTS = ("Outputs", "", "activations", None)
_TENSORS = {
    "output": _OUTPUTS,
    "received": ("Inputs", "input", "inputs", None),
    "grad_output": ("Gradients of outputs", "gradient of its output", "grads", "output"),
    "grad_input": ("Gradients of inputs", "gradient of its input", "grads", "input"),
    "grad": ("Gradients of parameters", "gradient", "grads", "parameter"),
    "weight": ("Parameters and buffers", "parameter or buffer", "parameters", None),
    "parameter": ("Gradients of parameters", "gradient", "activations", None),
    "input": ("Gradients of inputs", "gradient of its input", "activations", None),
}
"""By the kind of a comparison's rows: a title, a name, and the probe and kind of each side's own rows on the tensor.

The last two are of saved reports.
"""
_OTHERS = ("", "", "activations", None)
_AGREEMENTS = {
    "beyond": "beyond tolerance",
    "within": "within tolerance",
    "equal": "equal",
    "added": "only in B",
    "removed": "only in A",
}
_SIZES = {"params": "parameters", "macs": "MACs", "kept_bytes": "bytes kept for backward"}
_RENAMED = "renamed: "
_MANY = 1000  # times the tolerance, which say less than both figures
_INFINITE = 10  # times the largest finite excess: a colour above all others
_DEFAULT = (
    "rtol is the square root of the dtype's epsilon, so that half of its digits agree: 3.5e-4 for float32, 0.031 for "
    "float16, 0.088 for bfloat16; for gradients ten times that"
)
_BY_STATISTICS = (
    "Each statistic may differ by as much as it would if every element moved by rtol times the root mean square of A's "
    "elements. Shapes, dtypes and counts of NaN and Inf must be equal."
)
_BY_DISTANCE = (
    "A tensor is beyond tolerance if the l2 norm of its difference, relative to the norm of A's tensor, is above rtol."
)
_ON_STEPS = "All steps that both records have are compared up to the first difference, then some of the others."
_ON_EXCESS = "Excess is the difference in units of what is allowed: above 1 it is beyond tolerance."
_ON_ORDER = (
    "The first divergence is the first in the order of execution: a part comes before the module that contains it."
)


class Comparison:
    """The differences among the reports of a page, and the reports of both sides, also as `documents` in JSON."""

    def __init__(self, reports: Sequence[Report], documents: Sequence[Mapping[str, Any]]) -> None:
        self._documents = documents
        self.diffs = {number: report for number, report in enumerate(reports) if report.probe == "diff"}
        self._sides = [
            {number: report for number, report in enumerate(reports) if report.meta.get("side") == side}
            for side in "ab"
        ]
        self._places = [dict(places_of_side(side)) for side in self._sides]

    def payload(self) -> dict[str, Any] | None:
        """The comparison as JSON; None for a page without differences.

        `diffs` are the numbers of the reports, and `rows` of each what `row` says of its rows. `columns` are the
        figures of both sides, by which the page widens each report; `parts` its rows by the kind of tensor, a tab each.
        `verdicts` are in words; so are the `settings` and `sizes` in which the sides differ, `how` they were
        judged, and the `agreements` of rows. `excess` has, by side, the largest of each module's outputs.
        """
        if not self.diffs:
            return None
        diffs = [*self.diffs.values()]
        rows = [[self.row(diff, row) for row in diff.rows] for diff in diffs]
        parts = [part for number in self.diffs for part in self.parts(number)]
        return {
            "diffs": [*self.diffs],
            "rows": rows,
            "columns": [self.columns(diff, of_diff) for diff, of_diff in zip(diffs, rows, strict=True)],
            "verdicts": [verdict(diff, diffs) for diff in diffs],
            "settings": self.settings(diffs[0]),
            "sizes": self.sizes(),
            "how": how_judged(diffs[0]),
            "agreements": _AGREEMENTS,
            "parts": parts,
            "excess": {"a": self.excess(parts, lambda row: row.fqn), "b": self.excess(parts, name_in_b)},
        }

    def row(self, diff: Report, row: Row) -> dict[str, Any]:
        """How far the sides of a row agree, the module's name in B, and the places of both sides' own rows."""
        return {"agreement": agreement(row), "in_b": name_in_b(row), "own": self.own(diff, row)}

    def own(self, diff: Report, row: Row) -> list[tuple[int, int] | None]:
        """The numbers of A's and B's report, and of their rows, on the tensor of a row; None where there is none."""
        if "fqn" not in row.values:
            return [None, None]
        of, kind = diff.meta.get("of"), tensor_kind(diff, row)
        probe, measured = (of, row.get("kind")) if of else _TENSORS.get(kind, _OTHERS)[2:]
        names = (row.fqn, name_in_b(row))
        absent = ("added", "removed")
        return [
            None if row.get("change") == absent[side] else self._places[side].get(_key(probe, measured, name, row))
            for side, name in enumerate(names)
        ]

    def columns(self, diff: Report, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A column for each side of each figure that tells how far tensors are apart: no extremes."""
        names: dict[str, set[int]] = {}
        for side, place in (one for row in rows for one in enumerate(row["own"]) if one[1]):
            for name in self._documents[place[0]]["rows"][place[1]]:
                names.setdefault(name, set()).add(side)
        declared = [(column, names[column.name]) for column in map(diff.column, names) if column.about == "output"]
        extremes = (Merge.LEAST, Merge.MOST)
        figures = [one for one in declared if one[0].kind == Kind.FIGURE and one[0].merge not in extremes]
        return [
            {
                "name": f"{'ab'[side]}_{column.name}",
                "title": f"{column.title} {'AB'[side]}",
                "unit": None,
                "kind": column.kind,
                "drop": 0,
                "aside": ["diff"] if column.merge == Merge.NORM else [],
                "of": column.name,
                "side": side,
            }
            for column, sides in figures
            for side in sorted(sides)
        ]

    def parts(self, number: int) -> list[dict[str, Any]]:
        """The rows of a report by the kind of tensor: their title, and their numbers."""
        diff = self.diffs[number]
        whole = "steps" if is_over_steps(diff) else str(diff.meta.get("of") or "differences")
        rows: dict[str, list[int]] = {}
        for at, row in enumerate(diff.rows):
            rows.setdefault(tensor_kind(diff, row), []).append(at)
        return [
            {
                "title": _TENSORS.get(kind, _OTHERS)[0] or kind or whole[:1].upper() + whole[1:],
                "report": number,
                "kind": kind,
                "rows": of_kind,
            }
            for kind, of_kind in rows.items()
        ]

    def excess(self, parts: Iterable[Mapping[str, Any]], name: Callable[[Row], str]) -> dict[str, float]:
        """The largest excess of each module's outputs, by its name on a side."""
        largest: dict[str, float] = {}
        for part in parts:
            diff = self.diffs[part["report"]]
            for row in (diff.rows[at] for at in part["rows"]):
                times = math.nan if row.get("times") is None else row["times"]
                if times >= 0 and (part["kind"] == "output" or diff.meta.get("of") == "activations"):
                    largest[name(row)] = max(times, largest.get(name(row), 0.0))
        most = max([1.0, *filter(math.isfinite, largest.values())])
        return {fqn: _INFINITE * most if times == math.inf else times for fqn, times in largest.items()}

    def settings(self, diff: Report) -> list[str]:
        """The settings in which the two runs differ."""
        a: Mapping[str, Any] = diff.meta.get("a", {})
        b: Mapping[str, Any] = diff.meta.get("b", {})
        both = [key for key in a if key in b and not any(word in key for word in ("seconds", "value", "record"))]
        differing = [key for key in both if a[key] != b[key] and type(a[key]) in (str, bool, int, float)]
        return [f"{key} {_text(a[key])} → {_text(b[key])}" for key in differing]

    def sizes(self) -> list[str]:
        """Parameters and operations, where the sides have other numbers of them."""
        totals = [dict(one for report in side.values() for one in report.totals.items()) for side in self._sides]
        pairs = [(title, *(side.get(key) for side in totals)) for key, title in _SIZES.items()]
        return [f"{title} {x:,} → {y:,}" for title, x, y in pairs if type(x) is type(y) is int and x != y]


def places_of_side(side: Mapping[int, Report]) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yield the key and the place (report, row) of each row in a side's reports; the key identifies its tensor."""
    for number_of_report, report in side.items():
        for at, row in enumerate(report.rows):
            kind = None if report.probe == "parameters" else row.get("kind")  # parameters and buffers share no name
            yield _key(report.probe, kind, row.fqn, row), (number_of_report, at)


def _key(probe: str, kind: str | None, fqn: str, row: Row) -> tuple[Any, ...]:
    return probe, kind or None, fqn, row.get("call") or 0, row.get("path") or ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def tensor_kind(diff: Report, row: Row) -> str:
    """The kind of a row's tensor, "" if there is none; "received" for a module's input, where "input" is a gradient."""
    kind = str(row.get("kind") or "")
    return "received" if diff.meta.get("dump") and kind == "input" else kind


def is_over_steps(diff: Report) -> bool:
    """True if the rows of a comparison of records are steps, not tensors."""
    return diff.has_column("step")


def name_in_b(row: Row) -> str:
    """The name of a row's place in B: another one if its module was renamed."""
    change = str(row.get("change") or "")
    if not change.startswith(_RENAMED):
        return row.fqn
    name = change.removeprefix(_RENAMED)
    return "" if name == "(model)" else name


def agreement(row: Row) -> str:
    """How far the sides of a row agree, as _AGREEMENTS has it."""
    if row.get("change") in ("added", "removed"):
        return str(row["change"])
    return "beyond" if row.get("beyond") else "within" if (row.get("times") or 0) > 0 else "equal"


def verdict(diff: Report, diffs: Sequence[Report]) -> dict[str, Any]:
    """The verdict on one of several `diffs`, with the lines below it and the first row beyond tolerance.

    `text` is None where the verdict on the runs says more.
    """
    of_records, totals = record_of(diff), diff.totals
    if diff.meta.get("of") and record_of(diffs[0]):
        return {"text": None, "first": first_card(diff, diff.model.rpartition(": ")[2])}

    def lines(look: str, *keys: str) -> list[tuple[str, str]]:
        return [(look, str(totals[key])) for key in keys if totals.get(key)]

    above = lines("cause" if of_records else "said", "settings")  # the verdict on two models begins with them
    above += [] if diffs[1:] else [*lines("said", "parting", "apart"), *lines("said error", "first")]
    states = [*map(agreement, diff.rows)]
    counts = [(state, f"{states.count(state):,} {words}") for state, words in _AGREEMENTS.items() if state in states]
    name = diff.model if of_records else diff.meta.get("of") or diff.model
    return {
        "text": f"{name}: " * bool(diffs[1:]) + str(totals.get("verdict") or ""),
        "tone": tone(diff),
        "above": above,
        "first": first_card(diff),
        "agreements": None if is_over_steps(diff) else counts,
        "below": lines(
            "said",
            "structure",
            "grew",
            "weights",  # another word
        ),
    }


def record_of(diff: Report) -> object:
    """The name of A's record in a comparison of records; None in others."""
    return diff.meta.get("a", {}).get("record")


def tone(diff: Report) -> str:
    """The colour of a verdict: "error" or "good", "" for the run that is better, which is no error."""
    is_on_losses = record_of(diff) and (diff.totals.get("apart") or diff.totals.get("first"))
    if is_on_losses and " loss was " not in str(diff.totals.get("verdict")):
        return ""
    return "error" if diff.totals.get("beyond") or errors(diff) else "good"


def errors(diff: Report) -> list[Finding]:
    """The findings that make a comparison fail: settings that differ, and the first difference beyond tolerance."""
    return [finding for finding in diff.findings if finding.check == "diff" and finding.severity == "error"]


def first_card(diff: Report, where: str = "") -> dict[str, Any] | None:
    """The number of the first row beyond tolerance, which a finding names, with facts; None if all agree."""
    first = next(
        (
            (at, row)
            for finding in errors(diff)
            for at, row in enumerate(diff.rows)
            if row.get("beyond") and row.fqn == finding.fqn and row.get("times") == finding.value
        ),
        None,
    )
    if first is None:
        return None
    at, row = first
    call, times = row.get("call"), row.get("times")
    what = [
        where,
        row.get("type"),
        _TENSORS.get(tensor_kind(diff, row), _OTHERS)[1],
        row.get("path"),
        call and f"call {call}",
    ]
    excess = f"{number(times)} times the tolerance" if times is not None and times < _MANY else ""
    return {"row": at, "facts": [*filter(None, (" · ".join(filter(None, what)), row.get("differs"), excess))]}


def how_judged(diff: Report) -> list[str]:
    """How differences are judged, in words."""
    rtol, atol = (diff.meta.get(name) for name in ("rtol", "atol"))
    of_records = record_of(diff)
    asked = f"rtol is {number(rtol)}, as given" if isinstance(rtol, (int, float)) else _DEFAULT
    absolute = f", and atol {number(atol)}" if isinstance(atol, (int, float)) else ""
    rule = _BY_STATISTICS if diff.meta.get("of") or of_records else _BY_DISTANCE
    return [f"{rule} Here {asked}{absolute}.", *([_ON_STEPS] if of_records else []), _ON_EXCESS, _ON_ORDER]
