"""Two records compared: which run is better, the first step and module beyond tolerance, and what grew from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hookcli.diff.origin import first_beyond
from hookcli.diff.rows import diff
from hookcli.diff.tolerance import Tolerance, times_allowed
from hookcli.diff.verdict import CHECK, text_of, title
from hookcli.errors import UsageError
from hookcli.record.file.comparison.different_models import are_different, whole_models
from hookcli.record.file.comparison.loss_verdict import TwoLosses, losses
from hookcli.record.file.comparison.run_settings import Settings, nothing_in_common
from hookcli.record.file.comparison.runs import namesakes
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import RecordedStep, StepEntry
from hookcli.registry.capability import capabilities
from hookcli.registry.pieces import answers, left_out, texts
from hookcli.table import Finding, Merge, Report, Row
from hookcli.table.columns.recorded import RECORD_DIFF
from hookcli.table.formatting import loss as loss_text
from hookcli.table.meta import Meta
from hookcli.table.names import in_words

Pair = tuple[StepEntry, StepEntry]
Wanted = Callable[[Row], bool]
Narrowing = Callable[[Iterable[Report], Iterable[Report]], Wanted]
"""Makes the test of rows that are compared, for the reports of both sides."""
_PLACES = {"inputs": 0, "activations": 1, "loss": 2, "grads": 3, "updates": 4}
"""The order of reports; further probes follow the activations."""
_NOT_COMPARED = (
    *("time", "optimizer", "check"),
    *(one.name for one in capabilities() if one.recorder and not (one.probe or one.compares)),
)
"""Reports of recorded steps, of parts of capabilities among them."""
_FOLLOWED = 24  # steps after the first one beyond tolerance
_FOR_PEOPLE = 6  # of these steps have rows for people
_NAMED = 3
_OF_FIRST = [column.name for column in RECORD_DIFF if column.merge == Merge.WORST]
"""The columns that a step's row takes from its first row beyond tolerance."""


@dataclass(frozen=True)
class StepDiff:
    """The comparison of one step by probe, in the order of computing: the loss stands before the gradients."""

    a: RecordedStep
    b: RecordedStep
    reports: Mapping[str, Report]

    @property
    def beyond(self) -> list[Row]:
        """The rows beyond tolerance."""
        return [row for report in self.reports.values() for row in report.rows if row.get("beyond")]

    @property
    def first(self) -> tuple[str, Row] | None:
        """The first row beyond tolerance in the order of computing, and its probe."""
        firsts = ((probe, first_beyond(report.rows)) for probe, report in self.reports.items())
        return next(((probe, row) for probe, row in firsts if row is not None), None)


def diff_records(a: Record, b: Record, tolerance: Tolerance, narrow: Narrowing) -> list[Report]:
    """For each model a report of its steps, and one of the modules in the first step beyond tolerance.

    All steps that both records have are compared up to that step, then some of the others. `narrow` selects rows; it
    gets the names of all models at once, so that a text means the same in every step. Raises UsageError if the records
    have no step in common.
    """
    pairs = _pairs(a, b)
    if not pairs:
        raise UsageError(nothing_in_common(a, b))
    settings = Settings(a, b)
    wanted = narrow(*([report for step in record.last() for report in step.reports] for record in (a, b)))
    reports = []
    for model, steps in pairs.items():
        compared = list(_compared(a, b, steps, tolerance, wanted, settings))
        _require_rows(compared)
        if "activations" in compared[0].reports:
            settings.see_classes(compared[0].reports["activations"].rows)
        reports += _reports(model, compared, a, b, tolerance)
    differences = settings.line()
    if not differences and any(report.findings for report in reports):
        differences = "the runs differ in no setting that is recorded: look at code, data and seeds"
    if differences:
        reports[0] = replace(reports[0], totals={**reports[0].totals, "settings": differences})
    return reports


def _pairs(a: Record, b: Record) -> dict[str, list[Pair]]:
    """The steps that both records have, by model; the only models without a namesake belong together."""
    called = namesakes(*(list(dict.fromkeys(entry.model for entry in record.entries)) for record in (a, b)))
    there = {(e.model, e.phase, e.step, e.forward): e for e in b.entries if b.counts(e)}
    pairs: dict[str, list[Pair]] = {}
    for entry in filter(a.counts, a.entries):
        other = there.get((called.get(entry.model, ""), entry.phase, entry.step, entry.forward))
        if other is not None:
            pairs.setdefault(entry.model, []).append((entry, other))
    return pairs


def _compared(
    a: Record, b: Record, pairs: Sequence[Pair], tolerance: Tolerance, wanted: Wanted, settings: Settings
) -> Iterator[StepDiff]:
    parted = len(pairs)
    for place, (ours, theirs) in enumerate(pairs):
        # After the first one that differs: up to `_FOLLOWED` steps, evenly spread, and the last one.
        since, last = place - parted, len(pairs) - parted - 1
        if 0 < since < last and since * _FOLLOWED // last == (since - 1) * _FOLLOWED // last:
            continue
        one, other = next(a.steps([ours]), None), next(b.steps([theirs]), None)
        if one and other:  # neither is damaged
            settings.see(one, other)
            of_a, of_b = ({r.probe: r for r in step.reports if r.probe not in _NOT_COMPARED} for step in (one, other))
            diffs = {}
            for probe in sorted({*(of_a.keys() & of_b.keys()), "loss"}, key=lambda name: (_PLACES.get(name, 1), name)):
                if probe == "loss":
                    diffs[probe] = _loss(one, other, tolerance)
                else:
                    left, right = (replace(r, rows=[*filter(wanted, r.rows)]) for r in (of_a[probe], of_b[probe]))
                    diffs[probe] = diff(left, right, tolerance)
            step = StepDiff(one, other, diffs)
            parted = min(parted, place) if step.beyond else parted
            yield step


def _require_rows(steps: Sequence[StepDiff]) -> None:
    """Raise UsageError if steps of models of one kind have no row in common, or are all damaged."""
    if not steps:
        raise UsageError("nothing to compare: the steps that are in both records are damaged")
    reports = [report for step in steps for probe, report in step.reports.items() if probe != "loss"]
    if reports and not (any(r.totals["compared"] for r in reports) or are_different(steps[0].a, steps[0].b)):
        raise UsageError("nothing to compare: no module or parameter that is selected is in both records")


def _loss(a: RecordedStep, b: RecordedStep, tolerance: Tolerance) -> Report:
    """The losses as a report of one row, or of none if a step has no loss."""
    rows = []
    if a.loss is not None and b.loss is not None:
        rtol, atol = _limits(a, b, tolerance)
        times = times_allowed(a.loss, b.loss, rtol * abs(a.loss) + atol)
        values = {"fqn": "", "figure": "loss", "a": a.loss, "b": b.loss, "times": times, "kind": "loss"}
        beyond = {"beyond": True, "differs": f"loss {loss_text(a.loss)} → {loss_text(b.loss)}"} if times > 1 else {}
        rows = [Row(values | beyond)]
    return Report("diff", a.model, (), rows)


def _limits(a: RecordedStep, b: RecordedStep, tolerance: Tolerance) -> tuple[float, float]:
    """The tolerances between two losses."""
    return tolerance.limits(*(r.meta.get("dtype", "float32") for s in (a, b) for r in s.reports[:1]))


def _reports(model: str, steps: Sequence[StepDiff], a: Record, b: Record, tolerance: Tolerance) -> list[Report]:
    first = steps[0]
    name = model if model == first.b.model else f"{model} → {first.b.model}"
    both = TwoLosses(losses(a, model), losses(b, first.b.model), *_limits(first.a, first.b, tolerance))
    meta: Meta = {"a": {"record": str(a.path)}, "b": {"record": str(b.path)}}
    meta |= {"rtol": tolerance.rtol, "atol": tolerance.atol, "complete": a.end is not None and b.end is not None}
    if are_different(first.a, first.b):
        return [whole_models([(step.a, step.b) for step in steps], meta, both.headlines())]
    parted = next((step for step in steps if step.first), None)
    parting, again = partings(a, b, model, first.b.model)
    meta |= again
    totals: dict[str, object] = {"compared": len(steps), "beyond": sum(bool(step.first) for step in steps)}
    totals |= _lines(steps, _verdict(parted, both), parting)
    findings = []
    if parted is not None or both.parting() is not None:
        findings.append(Finding(CHECK, "error", "", str(totals["verdict"])))
    rows = _shown([*map(_row, steps)])
    over = Report("diff", name, RECORD_DIFF, rows, meta, totals, findings=findings, grouping="list")
    if parted is None or parted.first is None or parted.first[0] == "loss":
        return [over]
    place = f"{name}: {parted.first[0]} of step {parted.a.step:,}"
    return [over, replace(parted.reports[parted.first[0]], model=place)]


def partings(a: Record, b: Record, model: str, other: str) -> tuple[str, Meta]:
    """The lines of capabilities on where two runs of a model part, and the command to type next, if there is one."""
    partings: list[tuple[str, str]] = []
    for one, answer in answers("parting", a, b, model, other):
        with left_out(one, f"parting={one.parting!r}"):
            text, command = texts(answer)
            partings.append((text, command))
    again = next((Meta(next=command) for _, command in partings if command), Meta())
    return "; ".join(text for text, _ in partings if text), again


def _lines(steps: Sequence[StepDiff], verdict: Mapping[str, str], parting: str) -> dict[str, str]:
    """The sentences on steps that were compared, by their totals."""
    totals = (report.totals for step in steps for report in step.reports.values())
    structure = next((str(own["structure"]) for own in totals if "structure" in own), "")
    lines = {"structure": structure, **verdict, "parting": parting, "grew": _grown(steps)}
    return {name: line for name, line in lines.items() if line}


def _row(step: StepDiff) -> Row:
    values: dict[str, object] = {
        "step": step.a.step,
        "phase": step.a.phase.replace("_", " "),
        "count": len(step.beyond),
    }
    values |= {"loss_a": step.a.loss, "loss_b": step.b.loss}
    if step.first:
        row = step.first[1]
        values |= {key: row.get(key) for key in _OF_FIRST}
        values |= {"module": "(loss)" if step.first[0] == "loss" else in_words(row.fqn), "beyond": True}
    return Row(values)


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The rows from the step before the first one beyond tolerance, some `aside`; the first and the last if none is."""
    parted = next((place for place, row in enumerate(rows) if row.get("beyond")), None)
    if parted is None:
        return [*rows[:1], *rows[1:][-1:]]
    shown = rows[max(parted - 1, 0) :]
    every = -(-len(shown) // _FOR_PEOPLE)
    kept = {0, 1, len(shown) - 1, *range(1, len(shown), every)}
    return [row if n in kept else Row({**row.values, "aside": True}) for n, row in enumerate(shown)]


def _verdict(parted: StepDiff | None, both: TwoLosses) -> dict[str, str]:
    """The headlines: which run is better, and the first figure beyond tolerance."""
    headlines, agree = both.headlines(), both.parting() is None
    better = headlines.get("verdict", "")
    if parted is None or parted.first is None:
        return (
            {**headlines, "verdict": f"all within tolerance{f': {better}' if better else ''}"} if agree else headlines
        )
    probe, row = parted.first
    where = "loss" if probe == "loss" else f"{probe}: {title(row)}"
    phase = "" if parted.a.phase == "train" else f" ({parted.a.phase.replace('_', ' ')})"
    first = f"first beyond tolerance: step {parted.a.step:,}{phase}, {where}: {row['differs']}"
    if not better:
        return {"verdict": first}
    return {**headlines, "verdict": better + f"; other figures part at step {parted.a.step:,}" * agree, "first": first}


def _grown(steps: Sequence[StepDiff]) -> str:
    """The modules and parameters that came furthest apart since the first step that differs, with their figures."""
    differing = [step for step in steps if step.first]
    differing = [step for step in differing if step.a.phase == differing[0].a.phase]
    if len(differing) < 2:
        return ""
    first, last = _rows(differing[0]), _rows(differing[-1])
    grown = []
    for place, row in last.items():
        before = first[place].get("times") if place in first else None
        times = row.get("times") or 0.0
        if row.get("beyond") and math.isfinite(times) and times > (before or 0.0):
            grown.append((times, f"{_named(place)} {_apart(row)}"))
    if not grown:
        return ""
    most = sorted(grown, key=lambda one: -one[0])[:_NAMED]
    begin, end = differing[0].a.step, differing[-1].a.step
    return f"grew most from step {begin:,} to {end:,}: {', '.join(text for _, text in most)}"


def _rows(step: StepDiff) -> dict[tuple[str, str, str], Row]:
    """The rows of a step by probe, kind and place."""
    reports = step.reports.items()
    return {(probe, str(row.get("kind") or ""), row.fqn): row for probe, report in reports for row in report.rows}


def _apart(row: Row) -> str:
    """Both figures: 1.2 where A has 3.0e-04."""
    figure = "" if row["figure"] == "loss" else f"{str(row['figure']).replace('_', ' ')} "
    return f"{figure}{text_of(row['b'])} where A has {text_of(row['a'])}"


def _named(place: tuple[str, str, str]) -> str:
    probe, _, fqn = place
    return probe if probe == "loss" else f"{in_words(fqn)} ({probe})"
