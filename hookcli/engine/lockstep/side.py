"""The sides of a comparison, their parts that run compiled, and further runs of both.

These find operators before the comparison, and after it the origin of a difference, or times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.diff.align import Alignment, NamedPart, align
from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.lockstep.computing import computing
from hookcli.engine.lockstep.lockstep import A, ProcessState, SourceTree
from hookcli.engine.preserve import preserved
from hookcli.engine.run_info import describe_run, model_dtype
from hookcli.engine.setting import Feedback
from hookcli.engine.step import Step
from hookcli.engine.timing import TimedModel, time_passes, why_untimed
from hookcli.errors import HookcliError, ModelError
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import HookEvent
from hookcli.hooks.observing_mode import without_mode
from hookcli.hooks.parts import Select, compiled_parts
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.dynamo import use_fake_tensors
from hookcli.hooks.torch_private.programs import Compile
from hookcli.table import Report
from hookcli.table.meta import Meta
from hookcli.table.names import is_within_any, operator_owner
from hookcli.table.times import with_both_times
from hookcli.tensors.chunks import dequantized
from hookcli.tensors.random_state import accelerators

BatchOfBoth = tuple[object, object, object]
"""The input of each of two sides, and the target of both."""


@dataclass
class Side:
    """One of two models to compare, and how to run it; `inputs` and `edits` are as in `capture`.

    `compile` has, by fqn, what compiles modules, each by itself; none lies within another. `amp`, `attention` and
    `exact`: see `computing`. `emulate_casts`: see `emulated_casts`. `tree` has the modules
    imported from the side's own folder. `info` describes the run if `describe_run` does not suffice.
    """

    model: nn.Module
    inputs: Any
    name: str = ""
    fastpath: bool = True
    edits: Sequence[str | Edit] = ()
    compile: Mapping[str, Compile] = field(default_factory=dict)
    amp: torch.dtype | None = None
    attention: str | None = None
    exact: bool = False
    emulate_casts: bool = False
    tree: SourceTree | None = None
    info: Meta | None = None

    @property
    def described(self) -> Meta:
        meta: Meta = {**(self.info or describe_run(self.model, self.inputs))}
        if self.compile:
            meta["compile"] = ", ".join(fqn or "(model)" for fqn in self.compile)
        if self.amp:
            meta["amp"] = str(self.amp).removeprefix("torch.")
        if self.attention:
            meta["attention"] = self.attention  # another word
        return meta

    @property
    def computes(self) -> tuple[object, ...]:
        """Dtype, autocast, attention kernel and compiled parts: sides that differ in these round differently."""
        return model_dtype(self.model), self.amp, self.attention, tuple(self.compile)

    def step(self, step: Step) -> Step:
        """The step as this side computes it."""
        device = accelerators(self.model, self.inputs) or [torch.device("cpu")]
        return replace(step, within=partial(computing, device[0], self.amp, self.attention, exact=self.exact))


def alignment_of(a: nn.Module, b: nn.Module, operators: Sequence[Sequence[NamedPart]] = ((), ())) -> Alignment:
    """The alignment of the two models' modules, and of the operators of each."""
    parts = [[NamedPart(n, type(m).__name__) for n, m in model.named_modules()] for model in (a, b)]
    return align(*([*modules, *own] for modules, own in zip(parts, operators, strict=True)))


def error_to_raise(errors: Sequence[BaseException | None], sides: Sequence[Side]) -> BaseException | None:
    """The error to raise: a side's, with the side's letter, else an interrupt; None if both sides succeeded."""
    for number, error in enumerate(errors):
        if error is None or isinstance(error, KeyboardInterrupt):
            continue
        ours = isinstance(error, HookcliError)
        message = str(error if ours else failure.explain(error, sides[number].model))
        labelled = (type(error) if ours else ModelError)(f"{'AB'[number]}: {message}")
        labelled.__cause__ = error
        return labelled
    return next((error for error in errors if error is not None), None)


def copy_weights(a: nn.Module, b: nn.Module, alignment: Alignment) -> str | None:
    """Copy A's parameters and buffers to their counterparts in B, cast and moved. Returns a remark on those left."""
    state = b.state_dict()
    ours = {alignment.counterpart(name): value for name, value in a.state_dict().items()}
    left = []
    with torch.no_grad():
        for name, value in state.items():
            own = ours.get(name)
            if isinstance(value, Tensor):  # extra state belongs to the module
                if isinstance(own, Tensor) and own.shape == value.shape and dequantized(value) is value:
                    value.copy_(dequantized(own))
                else:
                    left.append(name)
    if not left:
        return None
    names = ", ".join(left[:3]) + (", ..." if left[3:] else "")
    why = "have no counterpart of their shape in A, or are quantized"
    return f"--same-weights: {len(left)} of {len(state)} tensors of B {why} ({names})"


UNSEEN = "part of a compiled module, where no hook fires"


def unseen_parts(model: nn.Module, compiled: Collection[str]) -> set[str]:
    """The modules whose hooks do not fire, since they lie in compiled modules, or in the modules of `compiled`."""
    return {fqn for fqn, _ in model.named_modules() if is_within_any(fqn, compiled)} | {*compiled_parts(model)}


@contextmanager
def compiled(model: nn.Module, ways: Mapping[str, Compile], *, inside: bool = False) -> Iterator[None]:
    """Compile these modules; hooks fire on them, and inside if a session looks `inside`."""
    use_fake_tensors()  # the sides run in threads of their own
    with ExitStack() as stack:
        for fqn, way in ways.items():
            module = model.get_submodule(fqn)
            own = vars(module).get("forward")
            put_back = (setattr, module, "forward", own) if own else (delattr, module, "forward")
            forward = way(module.forward)
            module.forward = forward if inside else without_mode(forward)
            stack.callback(*put_back)
        yield


Names = tuple[set[str], set[str]]


class Watched:
    """The test of a side's parts; `hidden` modules have no hooks: they, or their counterparts, run compiled.

    `compiled` are those that do, among them modules that are seen inside compiled programs.
    """

    def __init__(
        self, sides: Sequence[Side], alignment: Alignment, select: Select | None, inside: Sequence[bool]
    ) -> None:
        self.alignment = alignment
        self._model, self._select = sides[A].model, select
        parts = [unseen_parts(side.model, side.compile) for side in sides]
        self.compiled = self._on_both(*parts)
        self.hidden = self._on_both(*(set() if seen else own for own, seen in zip(parts, inside, strict=True)))
        self._without_operators = self._on_both(
            *(own | {*side.compile} for own, side in zip(parts, sides, strict=True))
        )

    def __call__(self, side: int, fqn: str, part: object) -> bool:
        """True if a module, or an operator by its function, is compared."""
        owner = operator_owner(fqn)
        if fqn in self.hidden[side] or owner in self._without_operators[side]:
            return False
        if self._select is None or side == A:
            return self._select is None or self._select(fqn, part)
        name = self.alignment.name_in(A, fqn)
        if name is None:
            return False
        return self._select(name, self._model.get_submodule(name) if owner is None else part)

    def _on_both(self, a: set[str], b: set[str]) -> Names:
        """These modules of each side, and the counterparts of the other's."""
        to_b, to_a = self.alignment.in_b, self.alignment.in_a
        of_a = a | {to_a[fqn] for fqn in b & to_a.keys()}
        return of_a, b | {to_b[fqn] for fqn in of_a & to_b.keys()}


def operators_of(side: Side, step: Step, ops: str, hidden: Collection[str] = ()) -> list[NamedPart]:
    """The comparable operators of a forward, as they first ran; `hidden` modules take no hooks. Never raises."""
    operators: dict[NamedPart, None] = {}

    def note(event: HookEvent) -> None:
        if event.operator and not event.operator.uninitialised:  # such operators are in no dump either
            operators[NamedPart(event.fqn, event.operator.name)] = None

    session = HookSession(side.model, fastpath=side.fastpath, ops=ops)
    hide(session, hidden)
    forward = side.step(replace(step, backward=False, graph=step.backward, passes=1))
    place = side.tree() if side.tree else nullcontext()
    with place, preserved(side.model, side.inputs, parameters=False), suppress(Exception), session:
        session.forward(note)
        forward.run(session, *arguments(side.inputs), {})
    return [*operators]


def hide(session: HookSession, modules: Collection[str]) -> None:
    """Keep a session from hooking parts of compiled modules, and from having compiled modules compiled again."""
    session.unhooked |= dict.fromkeys(modules, UNSEEN)
    session.past_compiled = True


AddTimes = Callable[[Report, Alignment], Report]
"""Adds the times of both sides to the report of their comparison."""


def time_sides(
    sides: Sequence[Side],
    step: Step,
    states: Sequence[ProcessState],
    hidden: Sequence[set[str]],
    edits: Sequence[Sequence[Edit]],
    ops: str | None,
    feedback: Feedback,
) -> AddTimes:
    """Time both sides, each in its own state; `hidden` modules take no hooks. A failure is named in `skipped`."""
    models = [
        TimedModel(
            side.model,
            side.inputs,
            side.step(step),
            side.fastpath,
            own,
            ops,
            unhooked=dict.fromkeys(parts, ""),
            within=state,
            warms_up=bool(side.compile),
        )
        for side, state, parts, own in zip(sides, states, hidden, edits, strict=True)
    ]
    try:
        (a, b), note = time_passes(*models, feedback=feedback)
    except HookcliError as error:
        reason = why_untimed(error)
        return lambda report, alignment: replace(report, skipped=[*report.skipped, reason])
    return lambda report, alignment: with_both_times(report, a, b, alignment.in_b, note)
