"""Emits an event for each call of the functions that probes name, and puts other outputs in their place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
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

Change = Callable[[HookEvent], object]
"""Returns what is to stand in place of an event's output."""
_Called = tuple[Any, tuple[str, str], Call, Args, Kwargs]


class NamedFunctions(ObservingMode):
    """Calls the `callbacks` for a name after each call of such a function in the forward of a watched module.

    Then the `changes` for that name, each of which gets the output that the one before it returned.
    """

    as_called = True

    def __init__(self, core: SessionCore) -> None:
        super().__init__()
        self.past_compiled = core.model if core.past_compiled else None
        self.callbacks: defaultdict[str, list[Callback]] = defaultdict(list)  # of all probes: a mode gets every call
        self.changes: defaultdict[str, list[Change]] = defaultdict(list)
        self._core = core
        self._lines = SourceLines()
        self._named = cache(function_names)
        self._see, self._change = core.guarded(self._seen), core.clock.counted(self._changed)

    def observe(self, func: Any, run: Function, args: Args, kwargs: Kwargs) -> object:
        named = self._named(func)
        asked = named[0] in self.callbacks or named[0] in self.changes
        call = running_call(self._core) if asked else None
        output = run_as_program(run, *args, **kwargs)
        if call is not None and call.hooked.watched and not in_backward():
            called = func, named, call, args, kwargs
            if named[0] in self.callbacks:
                self._see(called, output)
            if named[0] in self.changes:
                output = self._change(called, output)
        return output

    def _seen(self, called: _Called, output: object) -> None:
        event = self._event(called, output)
        for callback in self.callbacks[called[1][0]]:
            self._core.call_back(callback, event)

    def _changed(self, called: _Called, output: object) -> object:
        event = self._event(called, output)
        for change in self.changes[called[1][0]]:
            event.output = change(event)
        return event.output

    def _event(self, called: _Called, output: object) -> HookEvent:
        func, named, call, args, kwargs = called
        event = HookEvent(HookKind.FORWARD, call.hooked.fqn, call.hooked.module, call.number, call.index, args, kwargs)
        event.output, event.operator = output, Operator(func, *named, self._lines.caller())
        return event
