"""Figures of further runs of a comparison: each side's distance from float64, and the error of each module alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hookcli.diff.origin import OUTPUT
from hookcli.diff.tolerance import gradient_scales
from hookcli.diff.verdict import title
from hookcli.table import Report, Row, Skipped
from hookcli.table.columns import place_of
from hookcli.table.columns.layouts import PRECISION
from hookcli.table.names import is_within

Rows = Mapping[tuple[Any, ...], Row]
"""Rows of compared tensors by their place."""
_ALIKE = 1.5  # sides whose errors differ by less than this factor are equally far from float64
_NOISE = 1e-7  # share of the largest rms among gradients of one kind
_SHARE = 0.5  # of a module's own error: parts with this much of it are where it arises


def by_place(rows: Iterable[Row]) -> Rows:
    """The rows that have figures, by their place."""
    return {place_of(row.values): row for row in rows if "rel_l2" in row.values}


@dataclass
class Precision:
    """The figures of further runs by the place of a row, sentences for the verdict, and what could not be told."""

    values: dict[tuple[Any, ...], dict[str, float | None]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def judge(self, a: Rows, b: Rows) -> None:
        """Take in both sides' comparisons with a run in float64."""
        scales = gradient_scales((row["kind"], _rms(row)) for row in a.values())
        for place in a.keys() & b.keys():
            if a[place]["kind"] != OUTPUT and _rms(a[place]) <= _NOISE * scales[a[place]["kind"]]:
                continue  # a gradient that is zero but for rounding, as of a bias before a normalization
            self._add(place, a_error=a[place]["rel_l2"], b_error=b[place]["rel_l2"])
        if text := _judged(a, b):
            self.sentences.append(text)

    def isolate(self, compared: Rows, alone: Rows) -> None:
        """Take in a comparison in which each module of B received what A's received, beside the ordinary one."""
        own = {place: row for place, row in alone.items() if row.get("kind") == OUTPUT}
        for place, row in own.items():
            self._add(place, own=row["rel_l2"], inherited=_received(compared[place]) if place in compared else None)
        if own:
            self.sentences.append(_own(list(own.values())))

    def added_to(self, report: Report) -> Report:
        """The report with these figures as columns, and the sentences after its verdict."""
        rows = [row.having(self.values.get(place_of(row.values), {})) for row in report.rows]
        at = 1 + next(n for n, column in enumerate(report.columns) if column.name == "rel_l2")
        return replace(
            report,
            rows=rows,
            columns=[*report.columns[:at], *PRECISION, *report.columns[at:]],
            totals={**report.totals, "verdict": "; ".join([report.totals["verdict"], *self.sentences])},
            skipped=[*report.skipped, *self.skipped],
        )

    def _add(self, place: tuple[Any, ...], **figures: float | None) -> None:
        self.values.setdefault(place, {}).update(figures)


def _rms(row: Row) -> float:
    return float(row["a_l2"]) / math.sqrt(row["numel"] or 1)


def _judged(a: Rows, b: Rows) -> str:
    """The side that is nearer to float64, by how much, and where the other one's error grows most."""
    places = [place for place in a if place in b and a[place].get("kind") == OUTPUT]
    off = [place for place in places if a[place]["rel_l2"] or b[place]["rel_l2"]]
    if not off:
        return "both equal to float64" if places else ""
    whole = [place for place in off if not a[place].fqn] or off[-1:]  # a model may return zeros, as built
    errors = {side: max(rows[place]["rel_l2"] for place in whole) for side, rows in (("A", a), ("B", b))}
    there = f" in {title(a[whole[0]], typed=False)}" if a[whole[0]].fqn else ""
    near, far = sorted(errors, key=lambda side: errors[side])
    low, high = errors[near], errors[far]
    if low and high / low < _ALIKE:
        return f"A and B are equally far from float64 ({errors['A']:.2g} and {errors['B']:.2g}{there})"
    if low:
        text = f"{far} is {_times(high / low)} further from float64 than {near} ({high:.2g} and {low:.2g}{there})"
    else:
        text = f"{far} is {high:.2g} from float64{there}, to which {near} is equal"
    grown = _most_grown([(b if far == "B" else a)[place] for place in places])
    return f"{text}; its error grows most in {title(grown, typed=False)} ({grown['rel_l2']:.2g})"


def _times(ratio: float) -> str:
    """The ratio of two errors, above 1, to its power of ten: the smaller error is rounding, and differs by kernel."""
    return f"over {10 ** int(math.log10(ratio)):,} times" if ratio >= 10 else f"some {ratio:.0f} times"


def _most_grown(rows: Sequence[Row]) -> Row:
    """The module without compared parts whose error most exceeds the error of what it received."""
    outer = _with_parts(rows)
    inner = [row for row in rows if row.fqn not in outer] or rows
    known = [row for row in inner if _received(row) is not None] or inner
    return max(known, key=lambda row: row["rel_l2"] - (_received(row) or 0.0))


def _received(row: Row) -> float | None:
    """The largest relative error of what a module received; None if that is unknown."""
    if row.get("growth"):
        return float(row["rel_l2"] / row["growth"])
    return 0.0 if row.get("received") == "equal" else None


def _own(rows: Sequence[Row]) -> str:
    """Name the innermost module that makes the largest error on A's input, and the largest error among the others."""
    worst = max(rows, key=lambda row: row["rel_l2"])
    while worst["rel_l2"]:
        most = _SHARE * worst["rel_l2"]
        inner = [row for row in rows if is_within(row.fqn, worst.fqn) and row["rel_l2"] >= most]
        if not inner:
            break
        worst = max(inner, key=lambda row: row["rel_l2"])
    if not worst["rel_l2"]:
        return "no module has its own error"
    others = [row["rel_l2"] for row in rows if row.fqn != worst.fqn and not is_within(worst.fqn, row.fqn)]
    more = f" (others at most {max(others):.2g})" if any(others) else " (others have none)" if others else ""
    return f"own error: {title(worst, typed=False)} {worst['rel_l2']:.2g}{more}"


def _with_parts(rows: Iterable[Row]) -> set[str]:
    """The names of modules that have other rows within them."""
    outer: set[str] = set()
    for row in rows:
        name = row.fqn
        while name:
            name = name.rpartition(":")[0] if ":" in name else name.rpartition(".")[0]
            outer.add(name)
    return outer
