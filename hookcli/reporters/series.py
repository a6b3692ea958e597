"""Figures over steps, as programs that chart them take them: a run per model and phase, a tag per figure and place.

Tags are `FIGURE/MODULE`. These programs make a section of all tags with one first word, so a section shows one figure
of all modules side by side: 15 sections of 100 charts, where `MODULE/FIGURE` would make 100 sections of 15. A search
for a module's name shows all its figures. Figures of the whole model are in the section `(model)`, which comes first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from hookcli.system.escaping import visible
from hookcli.table import STATS_KEYS, Report, Row
from hookcli.table.columns.recorded import OF_STEP, REPEATS
from hookcli.table.histogram import Histogram, bound
from hookcli.table.meta import Meta, without

MODEL = "(model)"
_WHOLE = ("step", "over-time")  # reports with a row per step: its figures are in the place's own section
_OF_HISTOGRAM = {*STATS_KEYS} - {"std"}
"""Statistics that the formats ask for beside `hist`; a saved report may lack some."""


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of one model in one step. `run` is the model's name and, in a record, the phase.

    `histograms` are the values of `hist` and of the statistics beside it. `about` says what was run.
    """

    run: tuple[str, ...]
    step: int
    about: Mapping[str, Any]
    figures: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Mapping[str, Any]] = field(default_factory=dict)


def points(reports: Iterable[Report]) -> Iterator[Point]:
    """Yield the figures of each step. A report without steps has them in step 0; findings of checks are left out."""
    for report in reports:
        if report.has_column("check"):
            continue
        by_step: dict[int, Point] = {}
        for row in report.rows:
            step = row.get("step") or 0
            run = (report.model, *filter(None, [row.get("phase")]))
            point = by_step.setdefault(step, Point(run, step, {"model": report.model, **about(report)}))
            _add(point, report, row)
        yield from (point for point in by_step.values() if point.figures or point.histograms)


def about(report: Report) -> Meta:
    """Return the report's meta; of a recorded step, only what all steps share."""
    return without(report.meta, *OF_STEP) if "step" in report.meta else report.meta


def _add(point: Point, report: Report, row: Row) -> None:
    for column in report.columns:
        value = row.get(column.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and column.charted:
            point.figures[unused(_tag(report, row, column.name), point.figures)] = value
    flat = report.flat(row)
    # A step has the histogram of the model's own row, too.
    if isinstance(flat.get("hist"), Mapping) and report.probe != "step" and flat.keys() >= _OF_HISTOGRAM:
        point.histograms[unused(_tag(report, row, "hist"), point.histograms)] = flat


def _tag(report: Report, row: Row, figure: str) -> str:
    group = f"{row['optimizer']} group {row['group']}" if row.get("optimizer") else ""
    name = row.fqn or row.get("name") or group or MODEL
    of_row = [f" {key} {row[key]}" for key in REPEATS if row.get(key)]
    place = f"{name}{row.get('path') or ''}{''.join(of_row)}"
    if report.probe in _WHOLE:
        return visible(f"{place}/{figure}")
    if report.probe == "run":
        section = f"activations.{figure}" if figure in (*STATS_KEYS, "hist") else figure
    else:
        section = ".".join(filter(None, [report.probe, row.get("kind"), figure]))
    return visible(f"{section}/{place}")


def unused(name: str, taken: Collection[str], sign: str = "#") -> str:
    """Return the name of a tag or folder, numbered if it is taken."""
    numbered = (f"{name} {sign}{number}" for number in count(2))
    return next(one for one in chain([name], numbered) if one not in taken)


def encodable(value: str) -> str:
    """Return the text as UTF-8 can encode it: names of files and layers may be surrogates."""
    return value.encode("utf-8", "backslashreplace").decode()


def buckets(flat: Mapping[str, Any], most: float = math.inf) -> tuple[list[float], list[int]]:
    """Return the limits of a histogram's buckets from left to right, one more than counts, and the counts.

    `flat` holds `hist`, counts by sign and power of two, and `zeros`, whose bucket is between the smallest magnitudes.
    Empty buckets at either end are left out. If there were more than `most`, each spans several powers of two.
    """
    hist, powers = Histogram.from_dict(flat["hist"]), 1
    while True:
        begin, negative, positive = hist.coarser(powers)
        sizes = [bound(powers * (begin + i)) for i in range(len(positive) + 1)]
        limits, counts = [*(-size for size in reversed(sizes)), *sizes], [*reversed(negative), flat["zeros"], *positive]
        used = [i for i, count in enumerate(counts) if count]
        first, last = (used[0], used[-1]) if used else (len(negative), len(negative))
        if last - first < most:
            return limits[first : last + 2], counts[first : last + 1]
        powers *= 2
