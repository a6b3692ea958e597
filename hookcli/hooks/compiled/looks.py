"""The calls of modules inside compiled programs, as a session sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookcli.hooks.compiled.operator import forget, new_place, operators
from hookcli.hooks.compiled.traced import SEPARATOR, UNSEEN, Asked, traced_hooks
from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import HookedModule
from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.programs import guarding_hooks, not_compiled_alone
from hookcli.tensors.containers import Walked

Hook = Callable[..., Any]


class Looks:
    """Has modules in compiled programs call the session back as their programs run, in the program's order."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._way = operators()
        self._places: list[Tensor] = []
        self.asked = Asked()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Compile programs with looks in this block; they call nobody after it.

        In the caller's own run the block is long, and the caller's programs are compiled in it, too: there
        `own_programs_within` has hooks guarded.
        """
        with nullcontext() if self._core.callers_run else guarding_hooks():
            try:
                yield
            finally:
                forget(self._places)

    def ask(self, kind: HookKind) -> None:
        """Show this kind, too, in programs that are compiled from now on."""
        self.asked.inputs |= kind is HookKind.FORWARD_PRE
        self.asked.input_grads |= kind is HookKind.TENSOR_GRAD_INPUT
        self.asked.output_grads |= kind is HookKind.TENSOR_GRAD_OUTPUT

    def hooks(self, hooked: HookedModule, enter: Hook, leave: Hook) -> tuple[Hook, Hook]:
        """The hooks of a module: `enter` and `leave` where it runs outside of compiled programs, looks inside."""
        place = new_place(self._core.guarded(partial(self._look, hooked)))
        self._places.append(place)
        outside = [torch.compiler.disable(hook) for hook in (enter, leave)]
        asked = self.asked if hooked.watched else Asked()
        leaf = next(hooked.module.children(), None) is None
        hooks = traced_hooks(self._way, place, asked, leaf, *outside)
        not_compiled_alone(*hooks)
        return hooks

    def _look(self, hooked: HookedModule, what: str, number: int, tensors: Sequence[Tensor]) -> int:
        self._core.ran_inside = True
        kind, of, *paths = what.split(SEPARATOR)
        if kind not in ("enter", "leave", "call"):
            for path in paths:
                event = self._event(HookKind(kind), hooked, number, path=path, handed_on=bool(of))
                self._core.emit_gradient(event, tensors[0])
            return number
        if in_backward():  # activation checkpointing repeats the call, perhaps in part
            return hooked.calls - 1
        seen = zip((path for path in paths if path[0] != UNSEEN), tensors, strict=True)
        others = [path[1:].rpartition(" ") for path in paths if path[0] == UNSEEN]
        unseen = [(path, Walked(type_name)) for path, _, type_name in others if type_name not in _HOLD_NOTHING]
        shown = Walked(of, [(path[1:], _as_traced(path, x)) for path, x in seen], unseen)
        if kind != "leave":
            call = self._core.calls.begin(hooked)
        if kind == "enter":
            self._emit(self._event(HookKind.FORWARD_PRE, hooked, call.number, call.index, args=(shown,)))
            return call.number
        ended = self._core.calls.end(hooked)
        if not ended:  # the call began before the session did
            return number
        call = ended[0]
        self._emit(self._event(HookKind.FORWARD, hooked, call.number, call.index, output=shown))
        return call.number

    def _event(self, kind: HookKind, hooked: HookedModule, number: int, index: int = 0, **shown: Any) -> HookEvent:
        return HookEvent(kind, hooked.fqn, hooked.module, number, index, watched=hooked.watched, **shown)

    def _emit(self, event: HookEvent) -> None:
        if event.watched:
            self._core.emit(event)


_HOLD_NOTHING = {"dtype", "device", "layout", "memory_format", "bytes", "slice", "range", "function", "method", "type"}


def _as_traced(path: str, x: Tensor) -> Tensor:
    """The tensor, which needs gradients if it did when the program was traced: programs run without autograd."""
    return x.detach().requires_grad_() if path.startswith("+") and not x.requires_grad else x
