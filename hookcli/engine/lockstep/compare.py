"""Runs two models side by side on the same input and compares what their modules return, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from hookcli.diff import verdict
from hookcli.diff.origin import Origin
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.inputs import arguments
from hookcli.engine.lockstep.lockstep import A, B, Errors, Lockstep, ProcessState
from hookcli.engine.lockstep.module_tensors import GRAD_OUTPUT, OUTPUT, ModuleTensors, of_event
from hookcli.engine.lockstep.side import (
    UNSEEN,
    AddTimes,
    BatchOfBoth,
    Side,
    Watched,
    alignment_of,
    compiled,
    error_to_raise,
    hide,
    operators_of,
    origin_between_modules,
    time_sides,
)
from hookcli.engine.lockstep.state_diff import StateDiff, settings_diff, weights_line, with_state_rows
from hookcli.engine.lockstep.tensor_pairs import TensorPairs
from hookcli.engine.preserve import copied, preserved
from hookcli.engine.probing import of_hooks, parse_edits
from hookcli.engine.run_info import finished
from hookcli.engine.setting import Feedback
from hookcli.engine.step import Step
from hookcli.errors import HookcliError
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.edits.base import check_applied
from hookcli.hooks.events import HookEvent
from hookcli.hooks.parts import Select
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.unmeasured import unmeasured
from hookcli.sources.base import copy_model
from hookcli.table import Report, Skipped
from hookcli.table.columns.layouts import TENSORS, with_operators
from hookcli.table.meta import Meta
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators


def compare(
    a: Side,
    b: Side,
    *,
    tolerance: Tolerance | None = None,
    step: Step = Step(),
    select: Select | None = None,
    seed: int = 0,
    info: Meta | None = None,
    feedback: Feedback = Feedback(),
    batches: Iterable[BatchOfBoth] | None = None,
    total: int | None = None,
    ops: str | None = None,
    time: bool = False,
) -> Report:
    """Run both models once, module by module in step, and return how far apart their tensors are.

    A row compares a tensor that a module of A returned with that of its counterpart in B (`hookcli.diff.align`); if the
    step runs backward there are rows for the gradients of outputs and parameters, too. Tensors are kept only until they
    are compared. Parameters and buffers are compared before the run: those that differ have rows below their module's,
    which are `aside` if they are within tolerance, or many. `select` narrows by A's modules. Both sides draw the same
    random numbers, from `seed`. Models, buffers and random states are afterwards as before. If the models share modules
    or parameters, B is a copy.

    `batches` are several inputs, of which the sides have the first: the figures are those of all, concatenated.
    `total` is their number, if it is known. `ops`: compare operators, too (see Hooking); a forward of each side before
    finds them, so that those of both are paired in their order. Without `ops` and `select`, operators are looked at in
    one more forward if modules differ first in what they received. `time`: both are timed afterwards, in turns.

    Raises ModelError if a side fails; its `reports`, like those of a KeyboardInterrupt, hold what was compared until
    then.
    """
    started = perf_counter()
    parts = {id(part) for part in (*a.model.modules(), *a.model.parameters())}
    if any(id(part) in parts for part in (*b.model.modules(), *b.model.parameters())):
        b = replace(b, model=copy_model(b.model))  # else hooks could not tell their runs apart
    b = replace(b, inputs=copied(b.inputs))  # a side that writes into its inputs must not change the other's
    run = _Comparison(a, b, step, select, ops, time)
    each = [(a.inputs, b.inputs, step.target)] if batches is None else batches
    run.total = 1 if batches is None else total
    try:
        error = error_to_raise(run.execute(seed, feedback, each), run.sides)
    except HookcliError as failed:  # the next batch could not be made
        error = failed
    origin = None
    if error is None and not ops and select is None:
        again = partial(_Comparison, a, b, select=None, ops="functions", time=False)
        origin, error = origin_between_modules(run, again, tolerance or Tolerance(), seed, feedback)
    seconds = perf_counter() - started
    info = {**(info or {}), "seconds": seconds, "hookcli_seconds": run.clock.own, "complete": error is None}
    if batches is not None:
        info["batches"] = run.batches
    if isinstance(error, HookcliError):
        info["error"] = str(error).partition("\n")[0]
    report = run.report(tolerance or Tolerance(), info, origin)
    if error is not None:
        error.reports = (report,)  # type: ignore[attr-defined]
        raise error
    check_applied([edit for edits in run.edits for edit in edits], [report])
    return report


class _Comparison:
    """A comparison under way."""

    def __init__(self, a: Side, b: Side, step: Step, select: Select | None, ops: str | None, time: bool) -> None:
        self.sides = (a, b)
        self.ops = ops
        self.step = step
        self.alignment = alignment_of(a.model, b.model)
        self.edits = [parse_edits(side.edits, side.model, step.backward) for side in self.sides]
        both = zip(self.sides, self.edits, strict=True)
        self.infos: list[Meta] = [{**side.described, **of_hooks(side.fastpath, edits, ops)} for side, edits in both]
        constants = (x for side in self.sides for x in (*side.model.parameters(), *side.model.buffers()))
        self.pairs = TensorPairs(self.alignment, constants=constants)
        self.watched = Watched(self.sides, self.alignment, select)
        self.state_diff = StateDiff(a.model, b.model, self.alignment, select)
        self.settings = settings_diff(a.model, b.model, self.alignment, select, backward=step.backward)
        self.skipped: list[Skipped] = []
        self.batches = 0
        self.total: int | None = 1
        self.clock = ProgramClock()
        self.time = time
        self.add_times: AddTimes | None = None

    def execute(self, seed: int, feedback: Feedback, batches: Iterable[BatchOfBoth]) -> Errors:
        """Run both sides on each batch and return their errors."""
        errors: Errors = None, None
        with self._in_place(seed) as states:
            for *inputs, target in batches:
                for parameter in (p for side in self.sides for p in side.model.parameters()):
                    parameter.grad = None
                self.sides = (replace(self.sides[A], inputs=inputs[A]), replace(self.sides[B], inputs=inputs[B]))
                self.step = replace(self.step, target=target)
                errors = self._run(states, feedback)
                if any(errors):
                    break
                self.pairs.batch_ended()
                self.batches += 1
            if self.time and not any(errors):
                hidden = self.watched.hidden
                self.add_times = time_sides(self.sides, self.step, states, hidden, self.edits, self.ops, feedback)
        return errors

    def _run(self, states: tuple[ProcessState, ProcessState], feedback: Feedback) -> Errors:
        lockstep = Lockstep(states, self.clock.counted(self.pairs.compare), self.pairs.unmatched, self.pairs.keep)
        sessions = [
            HookSession(
                side.model, select=partial(self.watched, n), fastpath=side.fastpath, edits=self.edits[n], ops=self.ops
            )
            for n, side in enumerate(self.sides)
        ]
        for session, hidden in zip(sessions, self.watched.hidden, strict=True):
            session.begin_batch(self.batches, self.total)
            hide(session, hidden)
        feedback.follow(sessions[A].position)
        errors = lockstep.run(*(partial(self._play, n, sessions[n], lockstep) for n in (A, B)))
        if not any(errors):
            skipped = [Skipped(fqn, UNSEEN) for fqn in sorted(self.watched.hidden[A])] + unmeasured(sessions[A])
            self.skipped = [item for item in skipped if not self.batches or item in self.skipped]
            if self.step.backward:
                self.pairs.parameters(*(side.model for side in self.sides))
        return errors

    def report(self, tolerance: Tolerance, info: Meta, origin: Origin | None = None) -> Report:
        """The report of what was compared until now; `origin`: see `verdict.report`."""
        weights = self.state_diff.rows(tolerance)
        rows = with_state_rows(self.pairs.rows(tolerance, info["complete"]), weights)
        names = [side.name or type(side.model).__name__ for side in self.sides]
        columns = with_operators(TENSORS) if self.ops else TENSORS
        report = verdict.report(
            rows,
            self.alignment,
            tolerance,
            model=" → ".join(names),
            columns=[column for column in columns if column.name != "kind" or self.step.backward],
            metas=[finished(own) for own in self.infos],
            meta=finished(info),
            skipped=[*self.pairs.skipped(), *self.state_diff.skipped, *self.skipped],
            weights=weights_line(weights, self.state_diff.compared),
            settings=self.settings,
            origin=origin,
            identical=info["complete"] and bool(self.pairs.same_bits) and self.state_diff.identical,
        )
        return self.add_times(report, self.alignment) if self.add_times else report

    @contextmanager
    def _in_place(self, seed: int) -> Iterator[tuple[ProcessState, ProcessState]]:
        """Make both models ready to run, and restore them and the process after the block."""
        with ExitStack() as stack:
            devices = {device for side in self.sides for device in accelerators(side.model, side.inputs)}
            stack.callback(ProcessState(devices).enter)
            states, operators = [], []
            for number, side in enumerate(self.sides):
                stack.enter_context(preserved(side.model, side.inputs))
                if side.compile:
                    stack.enter_context(compiled(side.model, side.compile))
                torch.manual_seed(seed)
                if self.ops:
                    operators.append(operators_of(side, self.step, self.ops, self.watched.hidden[number]))
                states.append(ProcessState(accelerators(side.model, side.inputs), side.tree))
            if self.ops:
                self.alignment = alignment_of(self.sides[A].model, self.sides[B].model, operators)
                self.pairs.alignment = self.watched.alignment = self.alignment
            yield states[A], states[B]

    def _play(self, number: int, session: HookSession, lockstep: Lockstep[ModuleTensors]) -> None:
        """Run one side under hooks that bring its tensors to the comparison."""

        def arrive(event: HookEvent, kind: str, tensors: list[tuple[str, Tensor]]) -> None:
            seen = of_event(event, kind, tensors)
            if (key := self.pairs.key(number, seen)) is not None:
                lockstep.arrive(number, key, seen)

        def grad(event: HookEvent) -> None:
            assert event.grad is not None
            arrive(event, GRAD_OUTPUT, [(event.path, event.grad)])

        # Backward must run in the calling thread, for every device: a device's own thread would serve both sides, and
        # wait for ever once one side waits for the other.
        with session, torch.autograd.set_multithreading_enabled(False):
            session.forward_pre(partial(self.pairs.known.receive, number))
            session.forward(lambda event: arrive(event, OUTPUT, list(tree.leaves(event.output))))
            if self.step.backward:
                session.output_grad(grad)
                if number == A:
                    session.post_accumulate_grad(self.pairs.arrived)
            side = self.sides[number]
            side.step(self.step).run(session, *arguments(side.inputs), self.infos[number])
