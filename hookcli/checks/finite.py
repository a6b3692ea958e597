"""HK002 to HK005: NaN and infinities in inputs, activations, gradients and parameters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from hookcli.checks.base import ERROR, IN_EVAL, WARNING, Check, of_kind
from hookcli.checks.doubt import ReadsHarm, may_be_meant
from hookcli.checks.measurements import EvalOutputs, HiddenValues, ReadsInventory
from hookcli.checks.search import find_where
from hookcli.errors import ModelError
from hookcli.table import INFO, Finding, Report, Row, Skipped
from hookcli.table.formatting import counted
from hookcli.table.marks import WRITTEN, has_cause, is_lost
from hookcli.table.names import is_operator, is_within
from hookcli.table.training import LEAST, TrainingCourse


class _ReadsForwards(ReadsHarm, ReadsInventory, Protocol):
    eval_outputs: EvalOutputs | None
    hidden: HiddenValues | None
    grads: Report | None


class _ReadsWhatFollows(ReadsInventory, Protocol):
    activations: Report | None
    grads: Report | None
    output_grads: Report | None
    crash: ModelError | None


class _ReadsAnyGrads(Protocol):
    inventory: Report | None
    grads: Report | None
    output_grads: Report | None
    training: TrainingCourse | None
    step: int | None


class _NotFinite(Check):
    """The base of the four checks."""

    severity = ERROR

    def of_rows(self, rows: Iterable[Row], what: str, others: str = "") -> Iterator[Finding]:
        """A finding per row that is not finite, with the number of such values.

        With `others` only the first row is reported, with a count of the rest; `others` is the word for what is
        counted.
        """
        bad = [row for row in rows if is_lost(row) or row.get("scores") == WRITTEN]
        rest = len({row.fqn for row in bad}) - 1 if others else 0
        for row in bad[:1] if others else bad:
            assert row.stats is not None
            number = row.stats.nan + row.stats.inf
            kinds = " and ".join(k for k, n in (("NaN", row.stats.nan), ("infinite", row.stats.inf)) if n)
            after = f", and in {rest} {others}{'s' * (rest > 1)} after it" if rest else ""
            cause = f": {row['scores']}" if has_cause(row) else ""
            first = f" (first in batch {row['bad_batch']})" if row.get("bad_batch") else ""
            message = f"{number:,} of {row.stats.numel:,} {what} are {kinds}{cause}{first}{after}"
            finding = self.finding(row.fqn, message, number)
            yield replace(finding, hint=_SEE_A_KEY, remedy=_SEE_A_KEY) if cause else finding


class InputNotFinite(_NotFinite):
    """The model received NaN or infinite values, so no later result means anything.

    This can't happen with an input that hookcli makes (`--fill`). The check is for the example input of your own model,
    and for `hookcli.check(model, inputs)` on a real batch. It is no more than a note if all that modules return is
    finite, and so are the gradients: the model then fills in missing values.
    """

    id = "HK002"
    name = "input-not-finite"
    over_steps = "first"
    means = "the data has missing values, or a division by zero in the preprocessing"
    advice = "check what the data loader gives: torch.isfinite(batch).all()"
    needs = ("inventory",)
    takes = ("activations",)

    def judge(self, measured: _ReadsWhatFollows) -> Iterator[Finding]:
        inputs = of_kind(measured.inventory, "input")
        reports = (measured.activations, measured.grads, measured.output_grads)
        rows = [row for report in reports if report for row in report.rows]
        handled = measured.activations and not measured.crash and any(row.stats for row in rows)
        handled = handled and not any(map(is_lost, rows))
        for finding in self.of_rows(inputs, "input values"):
            message = f"{finding.message}; all that modules return is finite"
            note = replace(finding, severity=INFO, message=message, remedy=_MISSING, hint=_MISSING)
            yield note if handled else finding


_MISSING = "nothing to do if they stand for missing data, which the model fills in"


class ActivationNotFinite(_NotFinite):
    """A module returned NaN or infinite values.

    Only the first such module is reported, with a count of those after it: NaN spreads to everything downstream, but
    begins in one place. If that module already received such values, they begin in the code that calls it; the finding
    then names the module that this code belongs to, and the two of its parts between which the values appear. With
    --ops it names the operator, and its line in the code. Infinities that reach no module's output, such as those of
    attention masks, are not reported. Nor is -inf that the program writes into a module's output on purpose, such as
    the scores of forbidden actions, unless it does harm later; --ops then names the operator that wrote it. Infinities
    in a recorded step are a warning if neither their origin nor harm to the loss or a gradient is seen.

    In eval mode the model's output is judged for every batch, with and without gradients; of an output that is an
    object, such as a distribution, its attributes are judged. In that mode PyTorch's attention takes a fused path, in
    which a query without any key gives NaN instead of zeros. Values that torch.where or nan_to_num keep out of the
    output are a warning if a gradient through them is not finite, otherwise a remark. Only the first of several batches
    is searched for them.
    """

    id = "HK003"
    name = "activation-not-finite"
    over_steps = "first"
    means = "an overflow, a division by zero, or the logarithm or root of a negative number begins in this module"
    advice = "run it in float32 or float64, and clamp or add an epsilon there"
    follows = ("HK002", "HK005", "HK015")
    look = "activations"
    needs = ("activations", "inventory")
    takes = ("eval_outputs", "hidden")

    def judge(self, measured: _ReadsForwards) -> Iterator[Finding | Skipped]:
        findings = [*self._of_run(measured.activations.rows, measured.inventory.rows)]
        if may_be_meant(measured):
            doubted = [replace(one, severity=WARNING, hint=_LOOK_AGAIN, remedy=_LOOK_AGAIN) for one in findings]
            findings = [replace(one, message=f"{one.message}; {_UNSEEN}") for one in doubted]
        yield from findings
        if measured.eval_outputs and not findings:
            in_eval = [*self._in_eval(measured.eval_outputs, measured.inventory.meta.get("batches", 1))]
            shown = measured.eval_outputs.activations or any(
                map(is_lost, measured.grads.rows if measured.grads else ())
            )
            yield from in_eval if shown or not measured.hidden else (*in_eval, *self._hidden(measured.hidden))

    def _hidden(self, hidden: HiddenValues) -> Iterator[Finding]:
        """A warning of values that the output in eval mode hides, and its gradient does not; else a remark."""
        bad = [row for row in hidden.activations if is_lost(row) and (hidden.gradient or (row.stats and row.stats.nan))]
        for finding in self.of_rows(bad[:1], "values of its output"):
            spoils = f", but not from the gradient of {hidden.gradient}, which is not finite in {IN_EVAL[3:]}"
            message = (
                f"{IN_EVAL}: {finding.message}; they are kept from the model's output{spoils * bool(hidden.gradient)}"
            )
            severity = WARNING if hidden.gradient else INFO
            yield replace(finding, message=message, severity=severity, hint=_HIDDEN, remedy=_HIDDEN)

    def _in_eval(self, evaluated: EvalOutputs, batches: int) -> Iterator[Finding | Skipped]:
        how = f"{IN_EVAL} {'with' if evaluated.with_alone else 'without'} gradients"
        how = IN_EVAL if evaluated.gradients else how
        for finding in self._of_run(evaluated.activations, evaluated.inventory):
            finding = replace(finding, message=f"{how}: {finding.message}")
            if evaluated.fused:
                message = f"{finding.message}; without PyTorch's fused attention path they are finite"
                hint = f"a query that sees no key gives NaN on the fused path, and zeros without it; {_SEE_A_KEY}"
                finding = replace(finding, message=message, hint=hint, remedy=_SEE_A_KEY)
            yield finding
        unjudged = "the model's output was not judged: no tensor was found in it" if evaluated.unseen else ""
        if evaluated.batches < batches:
            read = f"only {evaluated.batches} of {batches} batches could be read again"
            unjudged = f"not judged {IN_EVAL} on every batch: {read}"
        if unjudged and not evaluated.activations:
            yield Skipped(f"{self.id} {self.name}", unjudged)

    def _of_run(self, activations: Sequence[Row], inventory: Sequence[Row]) -> Iterator[Finding]:
        received = {(r.fqn, r["call"]): r for r in inventory if r["kind"] == "received"}
        bad = _from_its_operator(_lost_modules(activations), activations, inventory)
        for finding in self.of_rows(bad, "values of its output", "module"):
            call = bad[0].get("call")  # a recorded step has one row for all calls
            place = next((r for (fqn, one), r in received.items() if fqn == finding.fqn and call in (None, one)), None)
            if has_cause(bad[0]) or not place:
                yield finding
                continue
            # The module only received the values: the finding moves to the module whose own code made them.
            while around := received.get((place["caller"], place.get("caller_call", 0))):  # it received them as well
                place = around
            if place["caller"] is None:
                yield replace(finding, message=f"{finding.message}; the model's input already has such values")
                continue
            between = f"between {place['after']} and {place.fqn}" if place["after"] else f"before {place.fqn}"
            described = finding.message.replace("its output", f"the output of {finding.fqn}")
            message = f"begins {between}, which received it: {described}"
            yield replace(finding, fqn=place["caller"], message=message)


_UNSEEN = "whether that is meant could not be seen"
_LOOK_AGAIN = "record another step of this model (--every), or give --ops: either shows which operator made them"
_HIDDEN = "replace what would give NaN before the function that makes it: torch.where after it does not stop gradients"
_SEE_A_KEY = "let every query see a key, for example by unmasking one key of items that are all padding"


def _from_its_operator(bad: Sequence[Row], activations: Sequence[Row], inventory: Sequence[Row]) -> Sequence[Row]:
    """These rows of modules, after the operator from which the first one's values come, if one is known."""
    rows = {(row.fqn, row.get("call")): row for row in activations if is_lost(row) or row.get("scores") == WRITTEN}
    each = any(call is not None for _, call in rows)  # a recorded step has one row for all calls
    made: dict[_Call, list[_Call]] = defaultdict(list)
    for row in inventory:
        if row["kind"] == "made":
            makers = ((fqn, call if each else None) for fqn, call in row["made_from"])
            made[row.fqn, row["call"] if each else None] += makers
    begin = bad[0] if bad and made else None
    seen = set[_Call]()
    while begin and (call := (begin.fqn, begin.get("call"))) not in seen:
        seen.add(call)
        begin = next((rows[maker] for maker in made.get(call, ()) if maker in rows), begin)
    return [begin, *(row for row in bad if row is not begin)] if begin else bad


_Call = tuple[str, int | None]


def _lost_modules(rows: Sequence[Row]) -> list[Row]:
    """The rows of modules that are not finite, without containers that only return what one of their parts made.

    Masks, which a module may return, count only if nothing else is not finite, and the model returns them.
    """
    bad = [row for row in rows if is_lost(row) and not is_operator(row.fqn)]
    others = [row for row in bad if not (row.stats and row.stats.masks)]
    lost = bad if not others and any(not row.fqn for row in bad) else others
    names = {row.fqn for row in lost}
    return [row for row in lost if not any(is_within(name, row.fqn) for name in names)]


class GradientNotFinite(_NotFinite):
    """The gradient of a parameter has NaN or infinite values: the next optimizer step would ruin the model.

    The finding names the parameter that autograd reached first, with a count of those after it: the fault lies near it,
    or between it and the loss. If the forward pass was finite, some function has a derivative that is not finite where
    its value is: `sqrt` and `norm` at 0, or `where` with NaN in the branch that is not taken. --ops names it, and its
    line in the code.

    Where the parameters' gradients are finite or were never read, `hookcli run --check` also judges the gradients of
    modules' outputs. That is a warning; it is an error if the optimizer made no step after five backward passes or
    more.
    """

    id = "HK004"
    name = "gradient-not-finite"
    over_steps = "first"
    means = "a derivative that is not finite (sqrt or norm at 0, torch.where over a NaN branch), or an overflow"
    advice = "add an epsilon there; `hookcli grads MODEL --of outputs` shows where"
    follows = ("HK003", "HK005", "HK013", "HK038")
    look = "grads --of outputs"
    needs = ("grads",)
    takes = ("inventory", "output_grads")
    or_else = ("output_grads",)

    def judge(self, measured: _ReadsAnyGrads) -> Iterator[Finding]:
        of_parameters = measured.grads.rows if measured.grads else ()
        findings = [*self.of_rows(of_parameters, "values of its gradient", "parameter")]
        if findings and measured.inventory and measured.output_grads:
            lost = sum(map(is_lost, of_parameters))
            findings = [*self._of_backward(measured.output_grads.rows, measured.inventory.rows, lost)] or findings
        yield from findings or self._of_outputs(measured)

    def _of_backward(self, outputs: Sequence[Row], inventory: Sequence[Row], lost: int) -> Iterator[Finding]:
        """The finding on the operators whose backward makes the first gradient of an output that is not finite."""
        begins = next(filter(is_lost, outputs), None)
        if not begins:
            return
        calls = begins.fqn, begins.get("call")  # a recorded step has one row for all calls
        taken = ((row.fqn, one) for row in inventory if row["kind"] == "made" for one in row["made_from"])
        users = {user for user, (fqn, call) in taken if calls in ((fqn, call), (fqn, None))}
        users &= {row.fqn for row in outputs if is_operator(row.fqn) and not is_lost(row)}
        after = f", and in {counted(lost, 'parameter')} after it"
        if len(users) == 1:
            what = f"values of the gradient that its backward gives {begins.fqn or 'the output'}"
            (finding,) = self.of_rows([begins], what)
            yield replace(finding, fqn=users.pop(), message=finding.message + after)
        elif users:
            (finding,) = self.of_rows([begins], "values of the gradient of its output")
            makers = " or ".join(sorted(users))
            yield replace(finding, message=f"{finding.message}, made by the backward of {makers}{after}")

    def _of_outputs(self, measured: _ReadsAnyGrads) -> Iterator[Finding]:
        """Judge the gradients of outputs in a running program, if the parameters' own are finite or were not read."""
        course, outputs = measured.training, measured.output_grads
        if measured.step is None or (course and course.scaled):
            return
        passes, left = (course.unfinished, course.left) if course else (0, None)
        rows = of_kind(outputs, "output") if outputs else []
        findings = [*self.of_rows(rows, "values of the gradient of its output", "module")]
        if not findings and passes and left is not None and math.isnan(left):
            findings = [self.finding("", "gradients of parameters are NaN or infinite")]
        for finding in findings:
            if measured.grads:
                remark = "the parameters' gradients were finite as the optimizer stepped"
                yield replace(finding, severity=WARNING, message=f"{finding.message}; {remark}")
            elif passes >= LEAST:
                remark = f"none of {passes:,} backward passes was followed by a step"
                yield replace(finding, message=f"{finding.message}, and {remark}")
            else:
                yield replace(finding, severity=WARNING)


class ParameterNotFinite(_NotFinite):
    """A parameter or buffer holds NaN or infinite values before any training step.

    Running statistics of a normalization count, too. Attention masks, which hold -inf on purpose, do not: a buffer of
    nothing but zeros and -inf is skipped. Only the first tensor is reported, with a count of the others, since a
    checkpoint of a run that diverged has NaN in all of them. Parameters come before buffers. `hookcli run --check` says
    which recorded update made the values so, or between which recorded steps they became so, in which case no
    checkpoint is to blame.
    """

    id = "HK005"
    name = "parameter-not-finite"
    over_steps = "first"
    means = "a checkpoint of a run that diverged, an initialisation that divides by zero, or torch.empty never filled"
    advice = "check the checkpoint, and what the constructor does with it"
    needs = ("inventory",)

    def judge(self, measured: ReadsInventory) -> Iterator[Finding]:
        rows = []
        for row in measured.inventory.rows:
            stats = row.stats
            is_mask = stats and (stats.masks or stats.inf == stats.numel > 0)  # added to attention scores
            if row["kind"] == "parameter" or (row["kind"] == "buffer" and not is_mask):
                rows.append(row)
        findings = [*self.of_rows(rows, "values", "tensor")]
        for finding in findings:
            made = _made_by(measured, finding.fqn)
            message = f"{finding.message}; {made}"
            yield replace(finding, message=message, hint=f"{made}; {_SEARCH}", remedy=_SEARCH) if made else finding
        ruined = measured.training.ruined if measured.training else {}
        if ruined and not findings:  # what the update of this step has made so
            fqn, number = next(iter(ruined.items()))
            stats = {row.fqn: row.stats for row in rows}.get(fqn)
            of = f"{number:,} of {stats.numel:,} values" if stats else counted(number, "value")
            more = f", and values of {counted(len(ruined) - 1, 'more tensor')}" if ruined.keys() - {fqn} else ""
            made = f"the update of step {measured.step:,} made {of} NaN or infinite{more}"
            yield replace(self.finding(fqn, made, number), hint=f"{made}; {_SEARCH}", remedy=_SEARCH)


_SEARCH = find_where("it begins")


def _made_by(measured: ReadsInventory, fqn: str) -> str:
    """Which steps of a running program made a tensor's values not finite; "" if it began with them."""
    course, step = measured.training, measured.step
    if not (step and course):
        return ""
    finite, updated = course.finite_at.get(fqn), course.updated_at.get(fqn)
    if finite is None:
        return f"they were so before step {step:,}, the first recorded one"
    if course.ruined_at.get(fqn) == finite:
        return f"the update of step {finite:,} made them so"
    if updated == finite:
        return f"they became so after the update of step {finite:,}" + (f", before step {step:,}" * (step > finite + 1))
    between = f"between step {finite:,} and step {step:,}" if step > finite else f"in step {step:,}"
    by = "a forward made them" if fqn.rpartition(".")[2].startswith("running_") else "they became"
    return f"{by} so {between}"
