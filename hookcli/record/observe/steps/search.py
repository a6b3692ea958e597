"""Finds the first non-finite value: where it arose, and the rows that came before it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import nn

from hookcli.hooks.operators.calls import LOSS
from hookcli.probes.base import StatsProbe
from hookcli.probes.shared.masked_scores import with_remarks
from hookcli.record.file.record_lines import BACKWARD, NonFinite
from hookcli.record.observe.measurements.evidence import ReceivedKind
from hookcli.record.observe.measurements.made_from import Maker
from hookcli.record.observe.measurements.step_measurements import Seen
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.observe.steps.step import ObservedStep
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import with_operators
from hookcli.table.losses import LARGE, LargeUpdate
from hookcli.table.marks import is_lost, is_unexplained
from hookcli.table.names import around, is_operator, is_within, owner_of, relative
from hookcli.tensors import tree
from hookcli.tensors.stats import resolve

_BEFORE = 5  # rows shown before the non-finite one
_INPUT = "input"


class StopProgram(SystemExit):
    """Ends the program, as `--first-bad stop` and `--then stop` ask; passes through its `finally`."""


class Search:
    """Searches the measurements of observed steps, in the order in which they were made."""

    def __init__(self, plan: RecordingPlan) -> None:
        self.on = plan.first_bad is not None
        self._is_over = False
        self._updates: dict[str, tuple[int, Row]] = {}  # by model: its last step, and the group that changed most
        self._usual: dict[str, set[ReceivedKind]] = {}  # by model: what its modules received in healthy steps
        self._passes: dict[str, tuple[int, int]] = {}  # by model: the forwards and backwards of its last step
        self._stop = plan.first_bad == "stop"
        self._doubtful: NonFinite | None = None
        """Infinities that the program may have written: operators of the model's next step will tell."""

    def look(self, step: ObservedStep, *, over: bool = False) -> NonFinite | None:
        """The first non-finite value that the step measured since the last call. Waits for an accelerator.

        `over`: the step has ended, so that whatever its operators can tell is known.
        """
        if not self.on:
            return None
        value = self._in_losses(step) or self._in_rows(step)
        doubtful = self._doubtful
        if over and doubtful and doubtful.model == step.model.name and step.measured.sees_operators:
            value = value or doubtful
        if value is not None:
            value = doubtful or value
            self.on, self._is_over = False, True
        else:
            self._usual.setdefault(step.model.name, set()).update(step.measured.evidence.take_usual())
        return value

    def rest(self) -> NonFinite | None:
        """The infinities of which nothing has told whether they are meant, as the program ends."""
        return self._doubtful if self.on else None

    def step_over(self, step: ObservedStep) -> None:
        if self.on and step.phase == "train":
            self._passes[step.model.name] = step.forwards, step.measured.passes
            rows = [row for row in step.measured.parameters.group_rows() if row["ratio"] is not None]
            if rows:
                most = max(rows, key=lambda row: math.inf if math.isnan(row["ratio"]) else row["ratio"])
                self._updates[step.model.name] = step.number, most

    def _micro_batch(self, step: ObservedStep, number: int) -> Iterator[str]:
        """Say in which of a step's several passes it was, counted from 0; the last step tells how many there are."""
        forwards, backwards = self._passes.get(step.model.name, (0, 0))
        if number > 1 or backwards > 1:
            kind = "micro-batch" if forwards == backwards else "pass"
            of = f" of {backwards}" if forwards == backwards >= number else ""
            yield f"in {kind} {number - 1}{of} (counted from 0)"

    def _large_update(self, step: ObservedStep) -> Iterator[str]:
        """Say how large the model's last update was, if it was large: the usual cause."""
        if step.model.name not in self._updates:
            return
        number, row = self._updates[step.model.name]
        if not (row["ratio"] <= LARGE or math.isinf(row["ratio"])):  # infinite: the weights were 0
            yield str(LargeUpdate(number, row["ratio"], row["lr"]))

    def end_program(self) -> None:
        """Have `stop_if_asked` end the program, for another reason than a value."""
        self._is_over = self._stop = True

    def stop_if_asked(self) -> None:
        """Raise StopProgram, once, if a value or a rule is to end the program; only the main thread can."""
        if self._is_over and self._stop and threading.current_thread() is threading.main_thread():
            self._stop = False
            raise StopProgram(1)

    def _in_rows(self, step: ObservedStep) -> NonFinite | None:
        """The first bad row: innermost modules return first. Infinities of operators, and of masks, are no fault."""
        for what, probe, seen, new in step.measured.unsearched():
            rows = self._judged_rows(step, what, probe, seen[-new - _BEFORE :])
            number = _first_bad(rows, len(rows) - new, what)
            if number is None:
                continue
            value = self._value_of(step, what, probe, rows[max(0, number - _BEFORE) : number + 1])
            if what != "output" or step.measured.sees_operators:
                return value
            lost = filter(is_lost, rows)
            if not all(is_unexplained(row) and not probe.has_computed(row) for row in lost):
                return value
            step.kept = True
            self._doubtful = self._doubtful or value
        return None

    def _judged_rows(self, step: ObservedStep, what: str, probe: StatsProbe, seen: Seen) -> list[Row]:
        """The rows of these measurements; those of outputs with remarks on infinities, which may clear up a doubt."""
        stats = resolve([pending for _, pending in seen])
        rows = [Row(values, s) for (values, _), s in zip(seen, stats, strict=True)]
        if what == "output" and any(map(is_lost, rows)):
            remarked = with_remarks(rows, probe.remarks())
            rows = [*step.model.with_masks(remarked, looked=step.measured.sees_operators)]
            doubtful = self._doubtful
            if doubtful and doubtful.model == step.model.name and step.measured.sees_operators:
                there = [row for row in rows if step.measured.name(row.fqn) == doubtful.fqn]
                meant = any(row.stats and row.stats.inf for row in there) and not any(map(is_lost, there))
                self._doubtful = None if meant else doubtful
        return rows

    def _value_of(self, step: ObservedStep, what: str, probe: StatsProbe, before: Sequence[Row]) -> NonFinite:
        """The value of the last of these rows, with its causes."""
        row = before[-1]
        columns = StatsProbe.columns if what == "output" else probe.columns
        if any(each.get("source") for each in before):
            columns = with_operators(columns)
        report = Report(probe.name, step.model.name, columns, before, grouping="list")
        value, causes = self._first_of(step, row, what, report)
        if value.what != _INPUT or value.fqn:  # an update changes no data
            causes += self._large_update(step)
        if what != "parameter gradient":  # which is the sum over the step
            number = step.observed_forwards if what == "output" else step.measured.passes
            causes += self._micro_batch(step, number)
        value = replace(value, cause="; ".join(causes))
        return step.measured.told(row.fqn, value)

    def _first_of(self, step: ObservedStep, row: Row, what: str, report: Report) -> tuple[NonFinite, list[str]]:
        """A row's value and causes; of an output what was received, but for infinities if a parameter is not finite."""
        evidence, usual = step.measured.evidence, self._usual.get(step.model.name, set())
        parameters = list(_parameters(step, row)) if what == "output" else []
        for fqn in reversed([row.fqn, *around(row.fqn)] if what == "output" else []):
            received = evidence.received(fqn, row["index"], usual)
            if received and (received.nan or not parameters):
                owners = (step.module.get_submodule(name) for name in around(fqn))
                owner = next((m for m in owners if not isinstance(m, (nn.ModuleList, nn.ModuleDict))), None)
                place = [f"computed between modules, in {type(owner).__name__}.forward"] if owner is not None else []
                value = _non_finite(step, fqn, _INPUT, received.nan, received.inf, [report])
                return value, [*place, *received.remarks]
        if what == "gradient" and (culprit := _culprit(step, row)):
            value = _non_finite(step, culprit.fqn, f"{BACKWARD} {culprit}", row["nan"], row["inf"], [report])
            return value, evidence.rows(what, row.fqn, row["index"], row["path"])
        causes = []
        if what == "output" and row.get("source"):  # of an operator
            causes.append(f"at {row['source']}")
        if what == "gradient" and report.rows[1:]:  # backward came from there
            last, source = report.rows[-2], report.rows[-2].get("source")
            came = f"of {last.fqn}{f' at {source}' if source else ''}" if last.fqn else "of the model's output"
            causes.append(f"the gradient before it, {came}, was finite")
        if what == "output" and row["inf"] and row["dtype"] == "float16":
            causes.append("float16 ends at 65,504")
        value = _non_finite(step, row.fqn, f"{what}{row['path']}", row["nan"], row["inf"], [report])
        return value, [*causes, *parameters, *evidence.rows(what, row.fqn, row["index"], row["path"])]

    def _in_losses(self, step: ObservedStep) -> NonFinite | None:
        for number, value in step.losses.new():
            if not math.isfinite(value):
                causes = [*self._large_update(step), *step.measured.finite_output()]
                causes += self._micro_batch(step, number)
                loss = _in_loss_function(step) or _non_finite(
                    step, "", "loss", int(math.isnan(value)), int(math.isinf(value)), []
                )
                return replace(loss, cause="; ".join(filter(None, [loss.cause, *causes])))
        return None


def _in_loss_function(step: ObservedStep) -> NonFinite | None:
    """The operator after the model's output from which a loss that is not finite comes; None if none was seen."""
    rows = step.measured.seen("output")
    bad = {(row.fqn, row["call"]): row for row in rows if row.fqn.startswith(LOSS) and is_lost(row)}
    if not bad:
        return None
    place = next(reversed(bad))
    seen = set[tuple[str, int]]()
    while place not in seen:
        seen.add(place)
        makers = ((maker.fqn, maker.call) for maker in step.measured.made_from.makers(*place))
        place = next((maker for maker in makers if maker in bad), place)
    row = bad[place]
    before = rows[: rows.index(row) + 1][-_BEFORE - 1 :]
    report = Report("activations", step.model.name, with_operators(StatsProbe.columns), before, grouping="list")
    value = _non_finite(step, row.fqn, f"output{row['path']}", row["nan"], row["inf"], [report])
    return replace(value, cause=f"at {row['source']}" if row.get("source") else "")


def _culprit(step: ObservedStep, row: Row) -> Maker | None:
    """The only call whose backward can have made a gradient bad: what it got was finite; None if it can't be told."""
    users = step.measured.made_from.users(row.fqn, row["call"])
    grads = {(one.fqn, one["call"]): not is_lost(one) for one in step.measured.seen("gradient")} if users else {}
    return users[0] if len(users) == 1 and grads.get((users[0].fqn, users[0].call)) else None


def _first_bad(rows: Sequence[Row], begin: int, what: str) -> int | None:
    """The number of the first bad row from `begin` on; of an output, of the first of the operators that led to it."""
    bad = [number for number in range(begin, len(rows)) if is_lost(rows[number])]
    if what == "output":
        modules = [number for number in bad if not is_operator(rows[number].fqn)]
        bad = [number for number in modules if not _masks(rows[number])]
        bad = bad or [number for number in modules if not rows[number].fqn]  # the model returns infinities
    if not bad or what != "output":
        return bad[0] if bad else None
    first = number = bad[0]
    while number and is_operator(rows[number - 1].fqn) and is_lost(rows[number - 1]):
        number -= 1
        first = first if _masks(rows[number]) else number
    return first


def _masks(row: Row) -> bool:
    return bool(row.stats and row.stats.masks)


def _non_finite(step: ObservedStep, fqn: str, what: str, nan: int, inf: int, reports: list[Report]) -> NonFinite:
    name = step.measured.name
    reports = [replace(r, rows=[replace(x, values={**x.values, "fqn": name(x.fqn)}) for x in r.rows]) for r in reports]
    return NonFinite(step.model.name, step.phase, step.number, step.measured.name(fqn), what, nan, inf, reports)


def _parameters(step: ObservedStep, row: Row) -> Iterator[str]:
    """Name the parameter or buffer that had made an output bad; parts that are never called count as its own."""
    within = owner_of(row.fqn) if is_operator(row.fqn) else row.fqn
    session = step.measured.session
    uncalled = (fqn for fqn in (*session.never_called(), *session.unhooked) if is_within(fqn, within))
    for fqn in (within, *uncalled):
        module = step.module.get_submodule(fqn)
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            mine = tree.local(tensor)  # one rank alone may be here: a collective would never end
            if mine.isnan().any() or (isinstance(tensor, nn.Parameter) and mine.isinf().any()):
                where = " in this rank's shard" if tree.shard_of(tensor) else ""
                place = ".".join(filter(None, (relative(fqn, within) if fqn != within else "", name)))
                yield f"its {place} is not finite{where}"
                return
