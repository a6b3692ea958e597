"""Emits an event for each call of the functions that a probe names."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from hookcli.hooks.events import Callback, HookEvent, Operator
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.observing_mode import ObservingMode
from hookcli.hooks.operators.calls import SourceLines, running_call
from hookcli.hooks.operators.functions import function_names
from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.exchange import Function
from hookcli.tensors.tree import Args, Kwargs


class NamedFunctions(ObservingMode):
    """Calls back after each call of a function of one of these names in the forward of a watched module."""

    as_called = True

    def __init__(self, core: SessionCore, callback: Callback, names: Collection[str]) -> None:
        super().__init__()
        self.past_compiled = core.model if core.past_compiled else None
        self._core = core
        self._callback = callback
        self._lines = SourceLines()
        self._named = cache(lambda func: named if (named := function_names(func))[0] in names else None)
        self._see = core.guarded(self._seen)

    def observe(self, func: Any, run: Function, args: Args, kwargs: Kwargs) -> object:
        named = self._named(func)
        call = running_call(self._core) if named else None
        output = run(*args, **kwargs)
        if call is not None and call.hooked.watched and not in_backward():
            self._see(func, named, call, args, kwargs, output)
        return output

    def _seen(self, func: Any, named: tuple[str, str], call: Call, args: Args, kwargs: Kwargs, output: object) -> None:
        event = HookEvent(HookKind.FORWARD, call.hooked.fqn, call.hooked.module, call.number, call.index, args, kwargs)
        event.output, event.operator = output, Operator(func, *named, self._lines.caller())
        self._core.call_back(self._callback, event)
