"""Finds the first non-finite value: where it arose, and the rows that came before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from hookcli.capabilities.first_bad.evidence import Evidence, ReceivedKind
from hookcli.capabilities.first_bad.made_from import MadeFrom, Maker
from hookcli.capabilities.first_bad.rows import finite_output, first_bad, rows_of
from hookcli.hooks.operators.calls import LOSS
from hookcli.hooks.session import HookSession
from hookcli.probes.base import StatsProbe
from hookcli.probes.shared.masked_scores import with_remarks
from hookcli.record.file.record_lines import BACKWARD, NonFinite
from hookcli.record.file.views.run_lines import counts_of, place_of
from hookcli.record.observe.parts import BegunStep, Measured, StepPart, StepView
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import with_operators
from hookcli.table.losses import LARGE, LargeUpdate
from hookcli.table.marks import is_lost, is_unexplained
from hookcli.table.names import around, is_operator, is_within, owner_of, relative
from hookcli.tensors import tree
from hookcli.tensors.stats import resolve

_BEFORE = 5  # rows shown before the non-finite one
_INPUT = "input"


@dataclass
class SearchState:
    """How far the search of a run has come. `when_found` is called with the first value."""

    on: bool = True
    when_found: Callable[[], object] = lambda: None
    updates: dict[str, tuple[int, Row]] = field(default_factory=dict)
    """By model: its last step, and the group that changed most."""
    usual: dict[str, set[ReceivedKind]] = field(default_factory=dict)
    """By model: what its modules received in healthy steps."""
    passes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By model: the forwards and backwards of its last step."""
    doubtful: NonFinite | None = None
    """Infinities that the program may have written: operators of the model's next step will tell, if they can."""
    harmless: bool = False
    """True if the step with these has ended without another value that is not finite."""


class SearchedStep(StepPart):
    """Searches the measurements of a step, in the order in which they were made."""

    inside_compiled = operators = True

    def __init__(self, run: SearchState, begun: BegunStep) -> None:
        self._run, self._begun = run, begun
        self._evidence, self._made_from = Evidence(begun.reduce), MadeFrom()
        self._passes = self._losses = 0
        self._searched: dict[tuple[str, str], int] = {}

    def attach(self, session: HookSession) -> None:
        # What an operator made is not blamed on the module that receives it.
        self._session = session
        self._evidence.attach(session, gradients=self._begun.gradients)
        if self._begun.operators:
            self._made_from.attach(session)

    def backward_over(self) -> None:
        self._passes += 1

    def look(self, step: StepView, *, over: bool) -> NonFinite | None:
        """The first non-finite value that the step measured since the last call. Waits for an accelerator."""
        run, model = self._run, self._begun.model
        if not run.on:
            return None
        value = self._in_losses(step) or self._in_rows(step)
        if over and run.doubtful and run.doubtful.model == model and step.sees_operators:
            value = value or run.doubtful
        if value is not None:
            run.on = False
            run.when_found()
            return self._first(value, step)
        run.usual.setdefault(model, set()).update(self._evidence.take_usual())
        run.harmless = run.harmless or (over and run.doubtful is not None and run.doubtful.model == model)
        if over and step.phase == "train":
            self._remember(step)
        return None

    def _first(self, value: NonFinite, step: StepView) -> NonFinite:
        """The first value: this one, or the doubtful infinities that came before it, if they may have led to it."""
        before = self._run.doubtful
        if before is None or before is value:
            return value
        if self._run.harmless:
            again = step.sees_operators and is_within(self._begun.name(value.fqn), before.fqn)
            return before if again else value
        return _followed_by(before, value)

    def _remember(self, step: StepView) -> None:
        """Note what the causes of a value in the model's next step may be."""
        self._run.passes[self._begun.model] = step.forwards, self._passes
        rows = [row for row in step.groups() if row["ratio"] is not None]
        if rows:
            most = max(rows, key=lambda row: math.inf if math.isnan(row["ratio"]) else row["ratio"])
            self._run.updates[self._begun.model] = step.number, most

    def _micro_batch(self, number: int) -> Iterator[str]:
        """Say in which of a step's several passes it was, counted from 0; the last step tells how many there are."""
        forwards, backwards = self._run.passes.get(self._begun.model, (0, 0))
        if number > 1 or backwards > 1:
            kind = "micro-batch" if forwards == backwards else "pass"
            of = f" of {backwards}" if forwards == backwards >= number else ""
            yield f"in {kind} {number - 1}{of} (counted from 0)"

    def _large_update(self) -> Iterator[str]:
        """Say how large the model's last update was, if it was large: the usual cause."""
        at, row = self._run.updates.get(self._begun.model, (0, None))
        if row and not (row["ratio"] <= LARGE or math.isinf(row["ratio"])):  # infinite: the weights were 0
            yield str(LargeUpdate(at, row["ratio"], row["lr"]))

    def _in_rows(self, step: StepView) -> NonFinite | None:
        """The first bad row: innermost modules return first. Infinities of operators, and of masks, are not a fault."""
        for sort in step.measured():
            key = sort.probe.name, sort.what
            new = len(sort.seen) - self._searched.get(key, 0)
            self._searched[key] = len(sort.seen)
            rows = self._judged_rows(step, sort, new + _BEFORE) if new > 0 else []
            number = first_bad(rows, len(rows) - new, sort.what)
            if number is None:
                continue
            value = self._value_of(step, sort, rows[max(0, number - _BEFORE) : number + 1])
            if sort.what != "output" or step.sees_operators or not self._may_be_meant(rows[number], sort):
                return value
            lost = (at for at in range(len(rows)) if is_lost(rows[at]) and not self._may_be_meant(rows[at], sort))
            if (surely := next(lost, None)) is not None:
                return _followed_by(value, self._value_of(step, sort, rows[surely : surely + 1]))
            step.keep()
            if self._run.doubtful is None:
                self._run.doubtful, self._run.harmless = value, False
        return None

    def _may_be_meant(self, row: Row, sort: Measured) -> bool:
        """True for infinities that the program may have written: no model returns nothing else, or +inf, as a mask."""
        if not is_unexplained(row) or sort.probe.has_computed(row):
            return False
        assert row.stats
        return bool(row.fqn) or (
            row.stats.finite > 0 and not self._evidence.returned_positive(row["index"], row["path"])
        )

    def _judged_rows(self, step: StepView, sort: Measured, last: int) -> list[Row]:
        """The last rows of these measurements; rows of outputs with remarks on infinities, which may clear a doubt."""
        seen = sort.seen[-last:]
        stats = resolve([pending for _, pending in seen])
        rows = [Row(values, s) for (values, _), s in zip(seen, stats, strict=True)]
        if sort.what == "output" and any(map(is_lost, rows)):
            rows = [*step.with_masks(with_remarks(rows, sort.probe.remarks()))]
            doubtful = self._run.doubtful
            if doubtful and doubtful.model == self._begun.model and step.sees_operators:
                there = [row for row in rows if self._begun.name(row.fqn) == doubtful.fqn]
                meant = any(row.stats and row.stats.inf for row in there) and not any(map(is_lost, there))
                self._run.doubtful = None if meant else doubtful
        return rows

    def _value_of(self, step: StepView, sort: Measured, before: Sequence[Row]) -> NonFinite:
        """The value of the last of these rows, with its causes."""
        row, what, probe = before[-1], sort.what, sort.probe
        columns = StatsProbe.columns if what == "output" else probe.columns
        if any(each.get("source") for each in before):
            columns = with_operators(columns)
        report = Report(probe.name, self._begun.model, columns, before, grouping="list")
        value, causes = self._first_of(step, row, what, report)
        if value.what != _INPUT or value.fqn:  # an update changes no data
            causes += self._large_update()
        if what != "parameter gradient":  # which is the sum over the step
            number = step.observed_forwards if what == "output" else self._passes
            causes += self._micro_batch(number)
        value = replace(value, cause="; ".join(causes))
        return step.told(row.fqn, value)

    def _first_of(self, step: StepView, row: Row, what: str, report: Report) -> tuple[NonFinite, list[str]]:
        """A row's value and causes; of an output what was received, but for infinities if a parameter is not finite."""
        evidence, usual = self._evidence, self._run.usual.get(self._begun.model, set())
        parameters = list(self._parameters(row)) if what == "output" else []
        for fqn in reversed([row.fqn, *around(row.fqn)] if what == "output" else []):
            received = evidence.received(fqn, row["index"], usual)
            if received and (received.nan or not parameters):
                owners = (self._begun.module.get_submodule(name) for name in around(fqn))
                owner = next((m for m in owners if not isinstance(m, (nn.ModuleList, nn.ModuleDict))), None)
                place = [f"computed between modules, in {type(owner).__name__}.forward"] if owner is not None else []
                value = self._non_finite(step, fqn, _INPUT, received.nan, received.inf, [report])
                return value, [*place, *received.remarks]
        if what == "gradient" and (culprit := self._culprit(step, row)):
            value = self._non_finite(step, culprit.fqn, f"{BACKWARD} {culprit}", row["nan"], row["inf"], [report])
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
        value = self._non_finite(step, row.fqn, f"{what}{row['path']}", row["nan"], row["inf"], [report])
        return value, [*causes, *parameters, *evidence.rows(what, row.fqn, row["index"], row["path"])]

    def _in_losses(self, step: StepView) -> NonFinite | None:
        losses = step.losses(self._losses)
        at = next((at for at, value in enumerate(losses) if not math.isfinite(value)), None)
        if at is None:
            self._losses += len(losses)
            return None
        causes = [*self._large_update(), *finite_output(step), *self._micro_batch(self._losses + at + 1)]
        value = self._non_finite(step, "", "loss", int(math.isnan(losses[at])), int(math.isinf(losses[at])), [])
        rows = rows_of(step, "output")
        bad = {(row.fqn, row["call"]): row for row in rows if row.fqn.startswith(LOSS) and is_lost(row)}
        if bad:  # the loss comes from an operator after the model's output
            place = next(reversed(bad))
            seen = set[tuple[str, int]]()
            while place not in seen:
                seen.add(place)
                makers = ((maker.fqn, maker.call) for maker in self._made_from.makers(*place))
                place = next((maker for maker in makers if maker in bad), place)
            row = bad[place]
            before = rows[: rows.index(row) + 1][-_BEFORE - 1 :]
            columns = with_operators(StatsProbe.columns)
            report = Report("activations", self._begun.model, columns, before, grouping="list")
            value = self._non_finite(step, row.fqn, f"output{row['path']}", row["nan"], row["inf"], [report])
            causes = [*([f"at {row['source']}"] if row.get("source") else []), *causes]
        return replace(value, cause="; ".join(causes))

    def _culprit(self, step: StepView, row: Row) -> Maker | None:
        """The only call whose backward can have made a gradient bad: what it got was finite; None if it isn't known."""
        users = self._made_from.users(row.fqn, row["call"])
        grads = {(one.fqn, one["call"]): not is_lost(one) for one in rows_of(step, "gradient")} if users else {}
        return users[0] if len(users) == 1 and grads.get((users[0].fqn, users[0].call)) else None

    def _non_finite(self, step: StepView, fqn: str, what: str, nan: int, inf: int, reports: list[Report]) -> NonFinite:
        name = self._begun.name
        reports = [
            replace(r, rows=[replace(x, values={**x.values, "fqn": name(x.fqn)}) for x in r.rows]) for r in reports
        ]
        return NonFinite(self._begun.model, step.phase, step.number, name(fqn), what, nan, inf, reports)

    def _parameters(self, row: Row) -> Iterator[str]:
        """Name the parameter or buffer that had made an output bad; parts that are never called count as its own."""
        within = owner_of(row.fqn) if is_operator(row.fqn) else row.fqn
        uncalled = (*self._session.never_called(), *self._session.unhooked)
        for fqn in (within, *(fqn for fqn in uncalled if is_within(fqn, within))):
            module = self._begun.module.get_submodule(fqn)
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                local = tree.local(tensor)  # one rank alone may be here: a collective would never end
                if local.isnan().any() or (isinstance(tensor, nn.Parameter) and local.isinf().any()):
                    where = " in this rank's shard" if tree.shard_of(tensor) else ""
                    place = ".".join(filter(None, (relative(fqn, within) if fqn != within else "", name)))
                    yield f"its {place} is not finite{where}"
                    return


def _followed_by(doubtful: NonFinite, value: NonFinite) -> NonFinite:
    """The infinities, which may be meant, with what came after them in the same step at the end of the cause."""
    then = f"then {counts_of(value)} in {place_of(value)}"
    return replace(doubtful, cause="; ".join(filter(None, [doubtful.cause, then])))
