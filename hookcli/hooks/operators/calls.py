"""Emits an event for each call of PyTorch's functions that makes or changes a tensor while the model's forward runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from hookcli.hooks.events import HookEvent, Operator
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.observing_mode import ObservingMode, without_mode
from hookcli.hooks.operators.functions import Given, given_tensors, reads_attribute, shown, writes
from hookcli.hooks.operators.source_lines import SourceLines
from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.dynamo import replaced_in_place
from hookcli.hooks.torch_private.overrides import TorchDispatchMode


class OperatorCalls(ObservingMode):
    """Operators as places: each event's `fqn` is the running module's, the function's name and its number there.

    Functions that a layer of torch.nn without parts calls are its own work, and have no events. Nor has what runs
    outside of the model's forward, inside backward, or while hookcli works.
    """

    kinds = (HookKind.FORWARD, HookKind.TENSOR_GRAD_OUTPUT)
    opens_attention = True

    def __init__(self, core: SessionCore) -> None:
        super().__init__()
        self.past_compiled = core.past_compiled
        self.core = core
        self._lines = SourceLines()
        self._names: dict[Any, tuple[str, str]] = {}
        self._whole: dict[int, bool] = {}
        self._watched: dict[str, bool] = {}
        self._see = core.guarded(self._seen)

    def __enter__(self) -> OperatorCalls:
        super().__enter__()
        if self.past_compiled:
            self._stack.enter_context(replaced_in_place(self.core.model, without_mode))
        return self

    def observe(self, func: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """See ObservingMode."""
        call = self._owner()
        if call is None or reads_attribute(func):
            return run(*args, **kwargs)
        given = Given(given_tensors(args, kwargs))
        for begin in self.core.before_operators:
            begin()
        output = run(*args, **kwargs)
        if writes(func) or given.makes(output):
            self._see(call, func, given, args, kwargs, output)
        return output

    def _owner(self) -> Call | None:
        """The module's call that a function runs in; None if the function is no operator of its own."""
        running = self.core.calls.running
        if not running or self.core.clock.busy:
            return None
        call = running[-1]
        if call.thread != (thread := threading.get_ident()):
            call = next((other for other in reversed(running) if other.thread == thread), call)
            if call.thread != thread:
                return None
        return None if call.again or self._is_whole(call.hooked.module) or in_backward() else call

    def _is_whole(self, module: nn.Module) -> bool:
        known = self._whole.get(id(module))
        if known is None:
            known = self._whole[id(module)] = self.core.ops != "aten" and is_whole(module)
        return known

    def _seen(self, call: Call, func: Any, given: Given, args: Any, kwargs: Any, output: Any) -> None:
        name, full = self._named(func)
        number = call.operators[name] = call.operators.get(name, 0) + 1
        fqn = f"{call.hooked.fqn}:{name}_{number}"
        index = self.core.calls.next_index()
        if not self._is_watched(fqn, func):
            return
        operator = Operator(func, name, full, self._lines.caller())
        made = next(given.written(), None) if output is None else output
        self.core.emit(
            HookEvent(HookKind.FORWARD, fqn, None, call.number, index, args, kwargs, made, operator=operator)
        )

    def _named(self, func: Any) -> tuple[str, str]:
        known = self._names.get(func)
        if known is None:
            known = self._names[func] = shown(func)
        return known

    def _is_watched(self, fqn: str, func: Any) -> bool:
        if self.core.select is None:
            return True
        known = self._watched.get(fqn)
        if known is None:
            known = self._watched[fqn] = self.core.select(fqn, func)
        return known


class AtenCalls(TorchDispatchMode):
    """The same for ATen's operators, below autograd; those that a layer calls are its parts, and have events, too."""

    def __init__(self, core: SessionCore) -> None:
        mode: Any = super()  # untyped
        mode.__init__()
        self._calls = OperatorCalls(core)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._calls.observe(func, func, args, kwargs or {})


def is_whole(module: nn.Module) -> bool:
    """True for a layer of torch.nn without parts: the functions that it calls are its own work."""
    forward = getattr(module.forward, "__module__", None) or ""
    return forward.startswith("torch.") and next(module.children(), None) is None
