"""A comparison of two models that run side by side, under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hookcli.diff import verdict
from hookcli.diff.origin import Origin
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.inputs import arguments
from hookcli.engine.lockstep.computing import not_widened
from hookcli.engine.lockstep.lockstep import A, B, Errors, Lockstep, ProcessState
from hookcli.engine.lockstep.module_tensors import GRAD_OUTPUT, OUTPUT, RECEIVED, ModuleTensors, of_event
from hookcli.engine.lockstep.side import (
    UNSEEN,
    AddTimes,
    BatchOfBoth,
    Side,
    Watched,
    alignment_of,
    compiled,
    hide,
    operators_of,
    time_sides,
)
from hookcli.engine.lockstep.state_diff import StateDiff, settings_diff, weights_line, with_state_rows
from hookcli.engine.lockstep.tensor_pairs import TensorPairs
from hookcli.engine.looked import Witness, moved_by_looks, without_looks
from hookcli.engine.preserve import preserved
from hookcli.engine.probing import of_hooks, parse_edits
from hookcli.engine.run_info import finished, model_dtype
from hookcli.engine.setting import Feedback
from hookcli.engine.step import Step
from hookcli.errors import message_of
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.events import HookEvent
from hookcli.hooks.parts import Select
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.programs import backends_of, emulated_casts, guarding_hooks
from hookcli.probes.shared.unmeasured import unmeasured
from hookcli.table import Report, Skipped
from hookcli.table.columns.layouts import TENSORS, with_operators
from hookcli.table.meta import Meta, with_notes
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators


class Comparison:
    """A comparison under way."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        step: Step,
        select: Select | None,
        ops: str | None,
        *,
        time: bool = False,
        isolate: bool = False,
    ) -> None:
        a, b = self.sides = sides
        self.isolate = isolate
        self.ops = ops
        self.step = step
        self.alignment = alignment_of(a.model, b.model)
        self.edits = [parse_edits(side.edits, side.model, step.backward) for side in self.sides]
        both = zip(self.sides, self.edits, strict=True)
        self.infos: list[Meta] = [{**side.described, **of_hooks(side.fastpath, edits, ops)} for side, edits in both]
        constants = (x for side in self.sides for x in (*side.model.parameters(), *side.model.buffers()))
        self.pairs = TensorPairs(self.alignment, constants=constants)
        # Operators are fused in compiled programs, and what edits change would be other programs.
        self.inside = [bool(side.compile) and not (ops or side.edits) for side in self.sides]
        self.watched = Watched(self.sides, self.alignment, select, self.inside)
        self.state_diff = StateDiff(a.model, b.model, self.alignment, select)
        self.settings = settings_diff(a.model, b.model, self.alignment, select, backward=step.backward)
        self.skipped: list[Skipped] = []
        self.batches = 0
        self.total: int | None = 1
        self.witnesses = Witness(a.model), Witness(b.model)
        self.tells_looks = False
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
            for number, side in enumerate(self.sides):
                if not (self.tells_looks and self.inside[number] and self.batches == 1):
                    continue
                # What compiles a side, and how far its outputs and gradients were moved by being looked at inside.
                with states[number]():
                    torch.manual_seed(seed)
                    plain = without_looks(side.model, side.inputs, side.step(self.step))
                failed = plain.error and f"without looks it failed: {message_of(plain.error).splitlines()[0]}"
                moved = failed or moved_by_looks(side.model, plain, self.witnesses[number])
                how = f"by {'; '.join(backends_of(side.model))}: {moved}"
                self.infos[number] = {**self.infos[number], "compiled": how}
            if self.time and not any(errors):
                hidden = self.watched.compiled
                self.add_times = time_sides(self.sides, self.step, states, hidden, self.edits, self.ops, feedback)
        return errors

    def _run(self, states: tuple[ProcessState, ProcessState], feedback: Feedback) -> Errors:
        self.states = states
        lockstep = Lockstep(states, self.clock.counted(self.pairs.compare), self.pairs.unmatched, self.pairs.keep)
        sessions = [
            HookSession(
                side.model,
                select=partial(self.watched, n),
                fastpath=side.fastpath,
                edits=self.edits[n],
                ops=self.ops,
                inside_compiled=self.inside[n],
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
        """The report of what was compared until now; `origin`: see `verdict.judged`."""
        weights = self.state_diff.rows(tolerance)
        rows = with_state_rows(self.pairs.rows(self.tolerated(tolerance), info["complete"]), weights)
        names = [side.name or type(side.model).__name__ for side in self.sides]
        columns = with_operators(TENSORS) if self.ops else TENSORS
        ways = zip("AB", self.infos, strict=True)
        notes = [f"{side} was compiled {own['compiled']}" for side, own in ways if "compiled" in own]
        line = weights_line(weights, self.state_diff.compared)
        compared = Report(
            probe="diff",
            model=" → ".join(names),
            columns=[column for column in columns if column.name != "kind" or self.step.backward],
            rows=rows,
            meta=finished(with_notes(info, *notes)),
            totals={"weights": line} if line else {},  # another word
            skipped=[*self.pairs.skipped(), *self.state_diff.skipped, *self.skipped],
        )
        report = verdict.judged(
            compared,
            self.alignment,
            tolerance,
            metas=[finished(own) for own in self.infos],
            settings=self.settings,
            identical=info["complete"] and bool(self.pairs.same_bits) and self.state_diff.identical,
            origin=origin,
        )
        return self.add_times(report, self.alignment) if self.add_times else report

    def tolerated(self, tolerance: Tolerance) -> Tolerance:
        """The tolerance that computed values deserve, by the way in which the sides compute them."""
        dtypes = [dtype for side in self.sides for dtype in (model_dtype(side.model), side.amp) if dtype]
        lowered = [str(dtype).removeprefix("torch.") for dtype in dtypes]
        (*a, ways), (*b, others) = (side.computes for side in self.sides)
        return replace(tolerance, lowered=lowered, fused=a == b and ways != others)

    @property
    def unlike(self) -> str:
        """The reason why the sides don't compute the same, but for rounding; "" if there is none."""
        alignment = self.alignment
        if alignment.added or alignment.removed or any(a.type != b.type for a, b in alignment.pairs):
            return "the sides differ in their modules"
        weights = self.state_diff.rows(Tolerance())
        if self.settings or any(row.get("beyond") or row.get("change") for row in weights):
            return "the sides differ in their settings" if self.settings else "the sides differ in their weights"
        edits = [[edit.text for edit in own] for own in self.edits]
        return "the sides differ in their edits" if edits[A] != edits[B] else ""

    @property
    def drew_alike(self) -> bool:
        """True if both sides drew the same random numbers."""
        return self.states[A].drew_as(self.states[B])

    @contextmanager
    def _in_place(self, seed: int) -> Iterator[tuple[ProcessState, ProcessState]]:
        """Make both models ready to run, and restore them and the process after the block."""
        with ExitStack() as stack:
            devices = {device for side in self.sides for device in accelerators(side.model, side.inputs)}
            stack.callback(ProcessState(devices).enter)
            stack.enter_context(emulated_casts(any(side.emulate_casts for side in self.sides)))
            if any(self.inside):  # else a program of a run without looks would run for the hooked model, too
                stack.enter_context(guarding_hooks())
            states, operators = [], []
            for number, side in enumerate(self.sides):
                stack.enter_context(preserved(side.model, side.inputs))
                if side.compile:
                    stack.enter_context(compiled(side.model, side.compile, inside=self.inside[number]))
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

        def feed(event: HookEvent) -> None:
            arrive(event, RECEIVED, list(tree.arguments(event.args, event.kwargs)))

        side = self.sides[number]
        call: Callable[..., Callable[[HookEvent], None]] = not_widened() if side.exact else lambda callback: callback
        # Backward must run in the calling thread, for every device: a device's own thread would serve both sides, and
        # wait for ever once one side waits for the other.
        with session, torch.autograd.set_multithreading_enabled(False):
            if self.isolate:
                session.forward_pre(feed)
            if not self.inside[number]:  # what modules receive there are other tensors than those that were returned
                session.forward_pre(call(partial(self.pairs.known.receive, number)))
            session.forward(call(lambda event: arrive(event, OUTPUT, list(tree.leaves(event.output)))))
            if self.step.backward:
                session.output_grad(call(grad))
                if number == A:
                    session.post_accumulate_grad(self.pairs.arrived)
            looked = self.witnesses[number].see if self.inside[number] else None
            replace(side.step(self.step), ran=looked).run(session, *arguments(side.inputs), self.infos[number])
            self.witnesses[number].note(session)
