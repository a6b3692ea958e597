"""The part of inside_compiled in a recorded run: a trial on copies decides which steps look inside compiled parts."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.engine.looked import Witness, moved_by_looks
from hookcli.engine.preserve import preserved_with_attributes
from hookcli.errors import in_brief
from hookcli.hooks.compilations import CompilationLog
from hookcli.hooks.parts import has_compiled
from hookcli.hooks.saved_tensors import without_saved_tensor_hooks
from hookcli.hooks.torch_private.autograd import post_accumulate_grad_hooks
from hookcli.hooks.torch_private.looked_programs import (
    can_look_inside,
    may_compile,
    own_programs_within,
    room_for_own_programs,
)
from hookcli.hooks.torch_private.programs import OwnProgram, backends_of
from hookcli.record.observe.inside import Measuring
from hookcli.record.observe.naming import replicas_of
from hookcli.record.observe.parts import RecordedRun, RecorderPart
from hookcli.system.handlers import raised_by_signal_handler
from hookcli.system.torchrun import joined_world
from hookcli.system.unheard import unheard
from hookcli.tensors import tree

_TRIED = 16
"""Inputs of other sizes or types that are tried for each model, each before its first recorded forward."""
_FAILURES = 3
OPTION = "--inside-compiled"


@dataclass
class _Model:
    """The state of one model: the `inputs` that were tried, the `last` one, what looks `moved`, and why it stays whole.

    `failures`: how often it failed as it is, which is most likely the program's own fault, and the program's to see.
    """

    inputs: list[object] = field(default_factory=list)
    last: object = None
    moved: list[str] = field(default_factory=list)
    seconds: float = 0.0
    failures: int = 0
    outcome: str = ""
    why_not: str = ""

    def add(self, key: object, moved: str, took: float, backends: Sequence[str]) -> None:
        """Note a try with a new input, and say what looks moved in all of them."""
        self.inputs.append(key)
        self.moved.append(moved)
        self.seconds += took
        first = next((one for one in self.moved if "gradients" in one), self.moved[0])
        others = [one for one in self.moved if one.startswith("looks move") and one != first]
        how = f"by {'; '.join(backends)}: {first}" + (f"; for other input, {others[0]}" if others else "")
        self.outcome = f"{how} (tried on copies, in {self.seconds:.1f} s)"


class InsideCompiled:
    """Tries looks inside compiled models, once for each size of input, and knows what they changed.

    A try runs the forward and a backward pass twice with copies of all that they change: as it is, which also has the
    program's own code compiled in the order that it would be compiled in without hookcli; then with looks. A failure
    leaves the model whole, so that none can be the program's.
    """

    def __init__(self, compilations: CompilationLog) -> None:
        self._compilations = compilations
        self._models: dict[str, _Model] = {}
        self._stack = ExitStack()
        self._trying: int | None = None  # the thread that does

    def wants(self, name: str, module: nn.Module) -> bool:
        """True if the next step of this model is to be seen inside compiled parts, of which it has some."""
        known = self._models.get(name)
        if (known is not None and known.why_not) or not has_compiled(module):
            return False
        if known is None:
            self._models[name] = known = _Model(why_not=_why_not(module))
            self._stack.enter_context(nullcontext() if known.why_not else room_for_own_programs())
        return not known.why_not

    def try_out(
        self, name: str, module: nn.Module, called: nn.Module, arguments: tuple[Any, Any], make: Callable[[], Measuring]
    ) -> bool:
        """Return whether a forward of the model with this input can be looked at, after a try on copies if it is new.

        `called`: the module that the program calls, `arguments`: its arguments. `make` makes what measures the step.
        """
        known = self._models[name]
        known.last = key = _kind_of_input(module, called, arguments)
        if known.why_not or not may_compile() or key in known.inputs or len(known.inputs) >= _TRIED:
            return not known.why_not and may_compile() and key in known.inputs
        began, plain, self._trying = perf_counter(), None, get_ident()
        try:
            plain = self._run(module, called, arguments, nullcontext())
            self._compilations.read()
            measuring = make()
            looked = self._run(module, called, arguments, self._looking(called, measuring))
            looked.note(measuring.session)
            measuring.release()
            moved = moved_by_looks(module, plain, looked)
            gc.collect()  # the garbage of compiling, else collected in a recorded step, at its cost
            took = perf_counter() - began
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            known.failures += plain is None
            if plain is not None or known.failures >= _FAILURES:
                known.why_not = f"a try on copies of what the program gave it failed: {in_brief(error)}"
            return False
        finally:
            self._trying = None
            self._compilations.skip()
        known.add(key, moved, took, backends_of(module))
        return True

    @contextmanager
    def within(self, name: str, frame: FrameType) -> Iterator[None]:
        """Have what this frame calls run programs with looks in this block: the model that was tried out last."""
        known, made = self._models[name], OwnProgram.made.total()
        self._compilations.read()
        try:
            with own_programs_within(frame):
                yield
        finally:
            self._compilations.skip()
            if OwnProgram.made.total() > made and known.last in known.inputs:
                known.inputs.remove(known.last)  # the model has changed: try the input again

    def said(self, name: str) -> str:
        """How the model's compiled parts were seen inside; "" if they were not."""
        known = self._models.get(name)
        return known.outcome if known and not known.why_not else ""

    def notes(self, name: str) -> list[str]:
        """A note on a model that was to be seen inside compiled parts."""
        known = self._models.get(name)
        if known is None:
            return []
        return [
            f"{OPTION}: left whole, since {known.why_not}" if known.why_not else f"inside compiled, {known.outcome}"
        ]

    @property
    def tries_elsewhere(self) -> bool:
        """True while another thread tries a model out, which may wait for this one."""
        return self._trying not in (None, get_ident())

    def none_found(self) -> list[str]:
        """A note on the run if no recorded model had compiled parts."""
        return [] if self._models else [f"{OPTION}: no recorded model is compiled, nor has compiled parts"]

    def close(self) -> None:
        """Put back what was set for it."""
        self._stack.close()

    @contextmanager
    def _looking(self, called: nn.Module, measuring: Measuring) -> Iterator[None]:
        measuring.start(called)
        try:
            with own_programs_within(sys._getframe(2)):
                yield
        finally:
            measuring.remove()

    def _run(
        self, module: nn.Module, called: nn.Module, arguments: tuple[Any, Any], way: AbstractContextManager[object]
    ) -> Witness:
        """Run forward and backward, and put all back that they changed. What they print is dropped."""
        args, kwargs = _copied(module, arguments)
        seen = Witness(module)
        with unheard(), without_saved_tensor_hooks(), preserved_with_attributes(module, arguments), way:
            output = called(*args, **kwargs)
            roots = [x for _, x in tree.leaves(output) if x.requires_grad and x.is_floating_point()]
            if roots and torch.is_grad_enabled():
                _differentiate(module, roots)
            seen.see(output)
        return seen


def _why_not(module: nn.Module) -> str:
    if not can_look_inside():
        return f"torch {torch.__version__} does not tell which backend compiles a function"
    if joined_world().size > 1 or replicas_of(module) > 1:
        return "several processes train it, which must run the same programs"
    return "" if backends_of(module) else f"torch {torch.__version__} does not tell which backend compiled it"


def _kind_of_input(module: nn.Module, called: nn.Module, arguments: tuple[Any, Any]) -> object:
    """All of a call that torch.compile may compile anew for."""
    leaves = [*tree.leaves(arguments)]
    tensors = tuple((path, x.shape, x.layout, x.dtype, x.device, x.requires_grad) for path, x in leaves)
    strides = tuple(x.stride() for _, x in leaves if x.layout == torch.strided and not x.is_nested)
    others = tuple(
        repr(x)[:80] for x in (*arguments[0], *arguments[1].values()) if isinstance(x, (bool, int, float, str))
    )
    casts = tuple(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    modes = tuple(part.training for part in module.modules()), tuple(p.requires_grad for p in module.parameters())
    return id(called), torch.is_grad_enabled(), modes, casts, tensors, strides, tuple(arguments[1]), others


def _copied(module: nn.Module, arguments: tuple[Any, Any]) -> tuple[Any, Any]:
    """The arguments, for a run that may use them up: tensors share the program's memory, but are part of no graph.

    Raises where they hold what can't be copied, such as a generator.
    """
    memo: dict[int, object] = {id(x): x for x in (*module.modules(), *module.parameters(), *module.buffers())}
    own = tree.once(lambda _, x: x.detach().requires_grad_() if x.requires_grad else x)
    return deepcopy(arguments, {id(x): own("", x) for _, x in tree.leaves(arguments)} | memo)


def _differentiate(module: nn.Module, roots: list[Tensor]) -> None:
    """Run backward from the sum of the outputs; without steps that optimizers take as gradients arrive."""
    sums = [x.sum() for x in roots]
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not any(map(post_accumulate_grad_hooks, parameters)):
        torch.autograd.backward(sums)
        return
    for p, grad in zip(parameters, torch.autograd.grad(sums, parameters, allow_unused=True), strict=True):
        p.grad = grad


class Recorder(RecorderPart):
    """Has recorded steps run programs with looks in place of those that torch.compile has made."""

    def __init__(self, *, inside_compiled: bool) -> None:
        assert inside_compiled

    def begin_run(self, run: RecordedRun) -> None:
        self._run = run

    def inside(self) -> InsideCompiled:
        return InsideCompiled(self._run.compilations)
