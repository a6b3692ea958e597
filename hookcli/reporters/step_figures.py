"""Figures over steps to chart: which columns of a report are charted, their curves, and the lines around them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from hookcli.reporters import footer
from hookcli.table import Column, Kind, Report, Shown, agree, formatting
from hookcli.table.columns.recorded import CHARTED
from hookcli.table.formatting import counted
from hookcli.table.meta import Meta

_SPREAD = 100.0  # ratio of largest to smallest figure above which the axis is logarithmic
_FLAT = 1e-6  # relative change of a figure that counts as none
_APART = 1e-3  # relative difference from which two runs count as apart
_CHARTED = 4  # figures, if none are chosen
_PAIR = 2
_FAR = 10.0  # times the largest figure of sound runs; beyond, a run that diverged leaves the axis
_ENDS = 4  # runs whose last figures are named
WHERE = ("step", "forward")
"""Columns that a report of figures over steps has."""
Points = Sequence[tuple[float, float]]
"""Figures by step, or by time; NaN leaves a gap."""


@dataclass(frozen=True, slots=True)
class Curves:
    """A figure over steps: one curve, or the curves of the runs A, B ...

    `flat` describes in one line a figure that never changed, but for rounding; such a figure is not drawn. `lost` are
    steps in which the figure is NaN or infinite. `limits`: the ends of the axis, beyond which a run that diverged goes.
    `over_time`: points and `lost` have seconds since the run began in place of steps.
    """

    title: str
    points: Sequence[Points]
    logarithmic: bool
    remark: str = ""
    flat: str = ""
    lost: Sequence[float] = field(default=())
    limits: tuple[float, float] | None = None
    over_time: bool = False

    @property
    def heading(self) -> str:
        """The title, with the remark and the scale in brackets."""
        scale = (
            ["over time"] * self.over_time
            + ["logarithmic"] * self.logarithmic
            + ["cut where a run diverges"] * (self.limits is not None)
        )
        remarks = [*filter(None, [self.remark]), *scale]
        return self.title + (f" ({', '.join(remarks)})" if remarks else "")


def chosen(report: Report, all_of_them: bool) -> tuple[list[Column], list[Column]]:
    """Return the columns to draw, and further ones that could be drawn: those that have figures."""
    known = {column.name: column for column in report.columns if _is_figure(report, column)}
    loss = [name for name in known if name.startswith("loss_")]  # of optimizers that step in turns
    first = [known[name] for name in (CHARTED[0], *loss, *CHARTED[1:]) if name in known][:_CHARTED]
    if all_of_them or not first:
        return list(known.values()), []
    return first, [column for column in known.values() if column not in first and column.shown != Shown.MARK]


def _is_figure(report: Report, column: Column) -> bool:
    base, _, side = column.name.rpartition("_")
    is_other = side in against(report) and any(one.name == base for one in report.columns)
    names = _of_runs(report, column.name)
    has_figures = any(not math.isnan(_finite(row.get(name))) for row in report.rows for name in names)
    losses = report.meta.get("loss_of_steps", ()) if column.name == "loss" else ()
    has_figures = has_figures or any(math.isfinite(loss) for of_run in losses for _, loss in of_run)
    return has_figures and column.name not in WHERE and not is_other


def _of_runs(report: Report, name: str) -> list[str]:
    """The columns of a figure, one for each run."""
    return [name, *(f"{name}_{side}" for side in [*against(report)][1:])]


def curves(report: Report, columns: Sequence[Column]) -> Iterator[Curves]:
    """The figure of each column; settings are drawn as they are, other figures as smooth as `meta` asks."""
    over = report.meta.get("smooth", 1)
    for column in columns:
        title = f"{column.title} ({column.unit})" if column.unit in ("seconds", "bytes") else column.title
        names = _of_runs(report, column.name)
        losses = [*report.meta.get("loss_of_steps", ()), *((),) * len(names)][: len(names)]
        whole = [[(int(step), loss) for step, loss in of_run if column.name == "loss"] for of_run in losses]
        if against(report):
            runs = {}
            for side, own, name in zip(against(report), whole, names, strict=True):
                values = [(row["step"], row.get(name)) for row in report.rows]  # None in a step of another run
                runs[side.upper()] = own or [(step, value) for step, value in values if isinstance(value, (int, float))]
            figure = _compared(title, runs)
        else:
            figure = _alone(title, whole[0] or [(row["step"], row.get(column.name)) for row in report.rows])
        yield _as_asked(figure, 1 if column.kind == Kind.SETTING else over, report.meta)


def _as_asked(figure: Curves, over: int, meta: Meta) -> Curves:
    """The figure with each point the mean over so many steps up to its own, and over time where `meta` asks."""
    if over > 1:  # what is not finite stays a gap
        remark = "; ".join(filter(None, [f"mean over {over:,} steps", figure.remark]))
        figure = replace(figure, points=[[*running_means(points, over)] for points in figure.points], remark=remark)
    if meta.get("x") != "time":
        return figure
    clocks = meta["clock"]
    points = [[(at(step, clock), y) for step, y in own] for own, clock in zip(figure.points, clocks, strict=True)]
    return replace(figure, points=points, lost=[at(step, clocks[0]) for step in figure.lost], over_time=True)


def at(step: float, clock: Sequence[Sequence[float]]) -> float:
    """When a step ended, in seconds since the run began: between recorded steps, and beyond them, at their pace."""
    place = min(max(bisect_left(clock, step, key=itemgetter(0)), 1), len(clock) - 1)
    (before, begin), (after, end) = clock[place - 1], clock[place]
    return begin if after == before else max(begin + (end - begin) * (step - before) / (after - before), 0.0)


def running_means(points: Points, over: int) -> Iterator[tuple[float, float]]:
    """Each point's step, and the mean of the values of so many steps up to it; NaN where its own value is that."""
    first = 0
    for place, (step, value) in enumerate(points):
        while points[first][0] <= step - over:
            first += 1
        finite = [other for _, other in points[first : place + 1] if not math.isnan(other)]
        yield step, value if math.isnan(value) else math.fsum(finite) / len(finite)


def against(report: Report) -> Mapping[str, str]:
    """The names of the runs "a", "b" ... whose figures a report has beside each other; empty for one run."""
    names = report.meta.get("against", {})
    return names if isinstance(names, Mapping) else {}


class _Course:
    """The points of a figure: as a curve with gaps, the values that are finite, and the steps of those that are not."""

    def __init__(self, points: Sequence[tuple[float, Any]]) -> None:
        self.curve = [(step, _finite(value)) for step, value in points]
        self.finite = [value for _, value in self.curve if not math.isnan(value)]
        self.lost = [step for step, value in points if isinstance(value, float) and not math.isfinite(value)]


def _alone(title: str, points: Sequence[tuple[int, object]]) -> Curves:
    course = _Course(points)
    finite, lost = course.finite, course.lost
    flat = ""
    if _is_flat(finite):
        where = "throughout" if len(finite) >= len(points) else f"in {len(finite)} of {len(points)} recorded steps"
        flat = f"{title}: {formatting.number(finite[0])}" + (f" {where}" if points[1:] else "")
    more = f" and {counted(len(lost) - 1, 'more step')}" if lost[1:] else ""
    remark = f"NaN or Inf in step {lost[0]:,}{more}" if lost else ""
    return Curves(title, [course.curve], is_logarithmic(finite), remark, flat=flat, lost=lost)


def _compared(title: str, runs: Mapping[str, Points]) -> Curves:
    """A figure of several runs, with the first step in which two are apart; in one line if none of them changed."""
    parted = _apart(*runs.values()) if len(runs) == _PAIR else _ends(runs)
    courses = {name: _Course(points) for name, points in runs.items()}
    lost = sorted({step for course in courses.values() for step in course.lost})
    every = [y for course in courses.values() for y in course.finite]
    whole = [name for name, points in runs.items() if all(map(math.isfinite, dict(points).values()))]
    sound = [y for name in whole for y in courses[name].finite]
    no_room = bool(sound) and max(map(abs, every)) > _FAR * max(map(abs, sound)) > 0
    limits = (min(sound), max(sound)) if no_room else None
    logarithmic, flat = is_logarithmic(sound if limits else every), _in_one_line(title, courses, parted)
    return Curves(title, [course.curve for course in courses.values()], logarithmic, parted, flat, lost, limits)


def _in_one_line(title: str, courses: Mapping[str, _Course], parted: str) -> str:
    """A figure that changes in none of these runs; "" if it changes."""
    if not all(_is_flat(course.finite) for course in courses.values() if course.finite):
        return ""
    whole = all(len(course.curve) == len(course.finite) for course in courses.values())
    where = "throughout" if whole else f"({parted})" if parted else ""
    firsts = {name: course.finite[0] for name, course in courses.items() if course.finite}
    alike = len(firsts) == len(courses) and _is_flat([*firsts.values()])
    each = ", ".join(f"{name} {formatting.number(value)}" for name, value in firsts.items())
    return f"{title}: {formatting.number(next(iter(firsts.values()))) if alike else each} {where}".rstrip()


def _apart(ours: Points, theirs: Points) -> str:
    """Say in which step two runs part, and where they end."""
    other = dict(theirs)
    pairs = [(step, a, other[step]) for step, a in ours if step in other]
    if not pairs:
        return "no step in both"
    parted = [pair for pair in pairs if not agree(*pair[1:], rel_tol=_APART)]
    if not parted:
        return f"A and B agree within {_APART:.1%}"
    first, last = (
        f"step {step:,}: A {formatting.loss(a)}, B {formatting.loss(b)}" for step, a, b in (parted[0], pairs[-1])
    )
    return f"parting at {first}" + (f"; {last}" if pairs[-1] != parted[0] else "")


def _ends(runs: Mapping[str, Points]) -> str:
    """The figure of each run in the last step that all have, smallest first; "" for runs without a common one."""
    by_step = {name: dict(points) for name, points in runs.items() if points}
    common = set.intersection(*map(set, by_step.values())) if by_step else set()
    if not common:
        return ""
    last = max(common)
    ends = sorted(by_step, key=lambda name: (not math.isfinite(by_step[name][last]), by_step[name][last]))
    more = f" ... {ends[-1]} {formatting.loss(by_step[ends[-1]][last])}" if ends[_ENDS:] else ""
    named = [f"{name} {formatting.loss(by_step[name][last])}" for name in ends[: _ENDS - 1 if more else _ENDS]]
    return f"step {last:,}: {', '.join(named)}{more}"


def _is_flat(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _FLAT * max(map(abs, values))


def is_logarithmic(values: Sequence[float]) -> bool:
    """True for figures that are drawn logarithmically, since they are far apart."""
    return min(values) > 0 and max(values) > _SPREAD * min(values)


def _finite(value: object) -> float:
    """Return the figure; NaN, which leaves a gap, if it is missing or not finite."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else math.nan


def above(report: Report) -> str:
    """Describe the run and its recorded steps."""
    steps = [row["step"] for row in report.rows]
    if not steps:
        return f"{footer.run_line(report)} · no recorded step"
    where = f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} to {steps[-1]:,}"
    recorded = report.totals.get("recorded_steps", len(steps))
    if recorded < len(steps):  # the loss, which is known of every step
        return f"{footer.run_line(report)} · {counted(len(steps), 'step')} ({where}), {recorded or 'none'} recorded"
    what = "recorded forward" if report.meta.get("mode") == "no grad" else "recorded step"
    return f"{footer.run_line(report)} · {counted(len(steps), what)} ({where})"


def below(report: Report, others: Sequence[Column], most: int | None = None) -> Iterator[str]:
    """The steps with non-finite values, what is not shown, and further columns that could be: so many by name."""
    counts = [column.name for column in report.known_columns() if column.shown == Shown.MARK]
    if steps := [row["step"] for row in report.rows if any(map(row.get, counts))]:  # which the charts leave out
        more = f" and {counted(len(steps) - 1, 'more step')}" if steps[1:] else ""
        yield f"NaN or Inf in step {steps[0]:,}{more}"
    if report.skipped:
        yield f"not shown: {footer.skipped_line(report)}"
    if others:
        yield choose("more figures", others, most)


def choose(what: str, columns: Sequence[Column], most: int | None = None) -> str:
    """How to draw further columns: more figures: lr, ratio; choose with --columns, for example --columns lr,ratio."""
    names = [column.name for column in columns]
    more = f" and {len(names[most:])} more" if most and names[most:] else ""
    return (
        f"{what}: {', '.join(names[:most])}{more}; choose with --columns, for example --columns {','.join(names[:2])}"
    )
