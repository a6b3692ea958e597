"""Two models run side by side on the same input, and what their modules return compared tensor by tensor."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.diff import verdict
from hookcli.diff.align import Alignment, NamedPart, align
from hookcli.diff.tensors import TENSORS
from hookcli.diff.tolerance import Tolerance
from hookcli.engine import failure
from hookcli.engine.capture import arguments
from hookcli.engine.lockstep.compiled import compiled, outermost, within
from hookcli.engine.lockstep.lockstep import A, B, Rendezvous
from hookcli.engine.lockstep.process_state import ModelWorld, SourceTree
from hookcli.engine.lockstep.state_diff import Held, beside
from hookcli.engine.lockstep.tensor_pairs import GRAD_OUTPUT, OUTPUT, Meeting, Seen
from hookcli.engine.preserve import copied, preserved
from hookcli.engine.probing import parse_edits
from hookcli.engine.run_info import UNSET, RunInfo, describe_run
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, ModelError
from hookcli.hooks.edits.base import Edit, check_applied
from hookcli.hooks.events import HookEvent
from hookcli.hooks.select import Select
from hookcli.hooks.session import HookSession
from hookcli.hooks.unhooked import compiled_parts
from hookcli.probes.base import unmeasured
from hookcli.report import Report, Skipped
from hookcli.sources.copies import twin
from hookcli.tensors import tree


@dataclass
class Side:
    """One of two models to compare, and how to run it; `inputs` and `edits` as for `capture`.

    `compile` is a glob: the outermost modules that match are compiled, each by itself, with `backend`. `tree` holds
    what was imported from the side's own folder.
    """

    model: nn.Module
    inputs: Any
    name: str = ""
    fastpath: bool = True
    edits: Sequence[str | Edit] = ()
    compile: str | None = None
    backend: str = "inductor"
    tree: SourceTree | None = None
    info: RunInfo | None = None

    @property
    def described(self) -> RunInfo:
        """The description of its run."""
        return self.info or describe_run(self.model, self.inputs)

    def compiled(self) -> dict[str, nn.Module]:
        """The modules that are compiled."""
        return outermost(self.model, self.compile) if self.compile else {}


def compare(
    a: Side,
    b: Side,
    *,
    tolerance: Tolerance | None = None,
    step: Step = Step(),
    select: Select | None = None,
    seed: int = 0,
    info: RunInfo | None = None,
) -> Report:
    """Run both models once, module by module in step, and return how far apart their tensors are.

    A row is what a module of A returned, held against what its counterpart in B returned (`hookcli.diff.align`), if the
    step runs backward also the gradients of both and of the parameters. Only tensors under comparison are kept.
    Parameters and buffers are compared as they are before the run: those that differ have rows below their module's,
    which are `aside` where they are within tolerance, or many. `select` narrows by A's modules. Each side draws the
    same random numbers, from `seed`. Models, buffers and random states are afterwards as they were before. Where the
    models share modules or parameters, B is a copy.

    Raises ModelError where a side fails; its `reports` hold what was compared until then, as do those of a
    KeyboardInterrupt.
    """
    started = time.perf_counter()
    if _shared(a.model, b.model):
        b = replace(b, model=twin(b.model))
    b = replace(b, inputs=copied(b.inputs))  # a side that writes into its inputs must not change the other's
    run = _Run(a, b, step, select)
    error = _told(run.execute(seed), run.sides)
    info = replace(info or RunInfo(), seconds=time.perf_counter() - started, complete=error is None)
    if isinstance(error, HookcliError):
        info.error = str(error).partition("\n")[0]
    report = run.report(tolerance or Tolerance(), info)
    if error is not None:
        error.reports = (report,)  # type: ignore[attr-defined]
        raise error
    for changes in run.edits:
        check_applied(changes, [report])
    return report


class _Run:
    """Both sides, and what watches them."""

    def __init__(self, a: Side, b: Side, step: Step, select: Select | None) -> None:
        self.sides = (a, b)
        self.step = step
        self.alignment = alignment_of(a.model, b.model)
        self.edits = [parse_edits(side.edits, side.model, step.backward) for side in self.sides]
        self.infos = [_described(side, changes) for side, changes in zip(self.sides, self.edits, strict=True)]
        self.meeting = Meeting(self.alignment)
        self.hidden = self._hidden()
        self.select = select
        self.held = Held(a.model, b.model, self.alignment, select)
        self.skipped: list[Skipped] = []

    def execute(self, seed: int) -> tuple[BaseException | None, BaseException | None]:
        """Run both; what each raised."""
        with self._in_place(seed) as worlds:
            meeting = Rendezvous(worlds, self.meeting.meet, self.meeting.alone, self.meeting.keep)
            sessions = [
                HookSession(side.model, select=partial(self._watched, n), fastpath=side.fastpath, edits=self.edits[n])
                for n, side in enumerate(self.sides)
            ]
            errors = meeting.run(*(partial(self._play, n, sessions[n], meeting) for n in (A, B)))
            if not any(errors):
                self.skipped = [Skipped(fqn, _COMPILED) for fqn in sorted(self.hidden[A])] + unmeasured(sessions[A])
                if self.step.backward:
                    self.meeting.parameters(*(side.model for side in self.sides))
        return errors

    def report(self, tolerance: Tolerance, info: RunInfo) -> Report:
        """What was compared."""
        weights = self.held.rows(tolerance)
        rows = beside(self.meeting.rows(tolerance, info.complete), weights)
        names = [side.name or type(side.model).__name__ for side in self.sides]
        return verdict.report(
            rows,
            self.alignment,
            tolerance,
            model=" → ".join(names),
            columns=[c for c in TENSORS if c.name != "kind" or self.step.backward],
            metas=[_meta(side, own) for side, own in zip(self.sides, self.infos, strict=True)],
            meta=info.to_meta(),
            skipped=[*self.meeting.skipped(), *self.held.skipped, *self.skipped],
            weights=verdict.weights_line(weights, self.held.compared),
        )

    @contextmanager
    def _in_place(self, seed: int) -> Iterator[tuple[ModelWorld, ModelWorld]]:
        """Both models ready to run; afterwards they and the process are as before."""
        with ExitStack() as stack:
            stack.callback(ModelWorld(_devices(self.sides)).enter)
            worlds = []
            for side in self.sides:
                stack.enter_context(preserved(side.model, side.inputs))
                if side.compile:
                    stack.enter_context(compiled(side.model, side.compile, side.backend))
                torch.manual_seed(seed)
                worlds.append(ModelWorld(_devices([side]), side.tree))
            yield worlds[A], worlds[B]

    def _play(self, number: int, session: HookSession, meeting: Rendezvous[Seen]) -> None:
        """What a side does when it is its turn."""

        def arrive(event: HookEvent, kind: str, tensors: list[tuple[str, Tensor]]) -> None:
            seen = Seen(kind, event.fqn, type(event.module).__name__, event.call, event.index, tensors)
            key: Hashable | None = self.meeting.key(number, seen)
            if key is not None:
                meeting.arrive(number, key, seen)

        def grad(event: HookEvent) -> None:
            assert event.grad is not None
            arrive(event, GRAD_OUTPUT, [(event.path, event.grad)])

        # Backward runs in the thread that calls it, for every device: a device's own thread would serve both sides, and
        # wait for ever where one of them waits for the other.
        with session, torch.autograd.set_multithreading_enabled(False):
            if number == A:
                session.forward_pre(self.meeting.receive)
            session.forward(lambda event: arrive(event, OUTPUT, list(tree.leaves(event.output))))
            if self.step.backward:
                session.output_grad(grad)
                if number == A:
                    session.post_accumulate_grad(self.meeting.arrived)
            self.step.run(session, *arguments(self.sides[number].inputs), self.infos[number])

    def _watched(self, number: int, fqn: str, module: nn.Module) -> bool:
        """What was asked for by A's names, and is not inside of a compiled module on either side."""
        if fqn in self.hidden[number]:
            return False
        if self.select is None or number == A:
            return self.select is None or self.select(fqn, module)
        name = self.alignment.in_a.get(fqn)
        return name is not None and self.select(name, self.sides[A].model.get_submodule(name))

    def _hidden(self) -> tuple[set[str], set[str]]:
        """The modules of each side that no hook sees, because they or their counterparts are parts of compiled ones."""
        parts = [_compiled_in(side) for side in self.sides]
        to_b, to_a = self.alignment.in_b, self.alignment.in_a
        of_a = parts[A] | {to_a[fqn] for fqn in parts[B] & to_a.keys()}
        return of_a, parts[B] | {to_b[fqn] for fqn in of_a & to_b.keys()}


_COMPILED = "part of a compiled module, where no hook fires (--compile with a glob for its parts compares them)"


def _compiled_in(side: Side) -> set[str]:
    names = (fqn for fqn, _ in side.model.named_modules())
    return {fqn for fqn in names if within(fqn, side.compiled())} | {*compiled_parts(side.model)}


def _described(side: Side, changes: Sequence[Edit]) -> RunInfo:
    return replace(side.described, fastpath=side.fastpath, edits=[edit.text for edit in changes] or UNSET)


def _meta(side: Side, info: RunInfo) -> dict[str, Any]:
    return info.to_meta() | ({"compile": side.compile, "backend": side.backend} if side.compile else {})


def _told(errors: Sequence[BaseException | None], sides: Sequence[Side]) -> BaseException | None:
    """What to raise of what the sides raised: a person's interrupt, or an error with the side's letter."""
    for number, error in enumerate(errors):
        if error is None or isinstance(error, KeyboardInterrupt):
            continue
        label = "AB"[number]
        ours = isinstance(error, HookcliError)
        said = str(error) if ours else failure.explain(error, sides[number].model)
        told = (type(error) if ours else ModelError)(f"{label}: {said}")
        told.__cause__ = error
        return told
    return next((error for error in errors if error is not None), None)


def _shared(a: nn.Module, b: nn.Module) -> bool:
    """Whether the models have a module or parameter in common: hooks could not tell one's run from the other's."""
    ours = {id(part) for part in (*a.modules(), *a.parameters())}
    return any(id(part) in ours for part in (*b.modules(), *b.parameters()))


def alignment_of(a: nn.Module, b: nn.Module) -> Alignment:
    """Which module of one model is which of the other."""
    return align(_places(a), _places(b))


def _places(model: nn.Module) -> list[NamedPart]:
    return [NamedPart(fqn, type(module).__name__) for fqn, module in model.named_modules()]


def _devices(sides: Iterable[Side]) -> set[torch.device]:
    return {t.device for s in sides for t in (*s.model.parameters(), *(x for _, x in tree.leaves(s.inputs)))}
