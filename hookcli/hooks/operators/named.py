"""Emits an event for each call of the functions that probes name."""

from __future__ import annotations

from collections import defaultdict
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
from hookcli.hooks.torch_private.frames import run_as_program
from hookcli.tensors.tree import Args, Kwargs


class NamedFunctions(ObservingMode):
    """Calls the `callbacks` for a name after each call of such a function in the forward of a watched module."""

    as_called = True

    def __init__(self, core: SessionCore) -> None:
        super().__init__()
        self.past_compiled = core.model if core.past_compiled else None
        self.callbacks: defaultdict[str, list[Callback]] = defaultdict(list)  # of all probes: a mode gets every call
        self._core = core
        self._lines = SourceLines()
        self._named = cache(function_names)
        self._see = core.guarded(self._seen)

    def observe(self, func: Any, run: Function, args: Args, kwargs: Kwargs) -> object:
        named = self._named(func)
        call = running_call(self._core) if named[0] in self.callbacks else None
        output = run_as_program(run, *args, **kwargs)
        if call is not None and call.hooked.watched and not in_backward():
            self._see(func, named, call, args, kwargs, output)
        return output

    def _seen(self, func: Any, named: tuple[str, str], call: Call, args: Args, kwargs: Kwargs, output: object) -> None:
        event = HookEvent(HookKind.FORWARD, call.hooked.fqn, call.hooked.module, call.number, call.index, args, kwargs)
        event.output, event.operator = output, Operator(func, *named, self._lines.caller())
        for callback in self.callbacks[named[0]]:
            self._core.call_back(callback, event)
