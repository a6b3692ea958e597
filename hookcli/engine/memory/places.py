"""The places of a run: the module call that is under way, or whose nodes run backward."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from hookcli.engine.memory.profile import Place
from hookcli.hooks.events import HookEvent
from hookcli.hooks.module_calls import Call
from hookcli.hooks.operators.calls import numbered
from hookcli.hooks.operators.functions import function_names
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import current_node, in_backward, next_sequence_number, sequence_number

OUTSIDE = Place()


class Places:
    """Tells the place of each operator.

    In backward it is the place whose forward created the running node. Autograd numbers nodes as they are created, so
    that it is enough to note the number of the next node wherever the place changes.

    Where the session watches operators they are places, too; `operators` has the name of each that ran, by fqn, and the
    line that called it.
    """

    def __init__(self, session: HookSession) -> None:
        self._calls = session.calls
        self._numbers: list[int] = []
        self._places: list[Place] = []
        self._last = OUTSIDE
        self._next = 0
        self.operators: dict[str, tuple[str, str]] = {}
        self._running: tuple[Call, Place] | None = None
        if session.ops:
            session.before_operators.append(self._begin)
            session.forward(self._end)

    def _begin(self, call: Call, function: object) -> None:
        """Note the operator that a function will be, if it makes a tensor."""
        self._running = call, Place(numbered(call, function_names(function)[0]), call.number)

    def _end(self, event: HookEvent) -> None:
        if event.operator is not None:
            self.operators[event.fqn] = event.operator.name, event.operator.source
            self._running = None

    def __call__(self) -> Place:
        call = self._calls.innermost()
        if call is None and in_backward():
            node: Any = current_node()
            # None while autograd adds two gradients up; a parameter's gradient follows the node that made it.
            if node is not None and getattr(node, "variable", None) is None:
                after = bisect_right(self._numbers, sequence_number(node))
                self._last = self._places[after - 1] if after else OUTSIDE
            return self._last
        place = Place(call.hooked.fqn, call.number) if call else OUTSIDE
        if self._running and self._running[0] is call:
            place = self._running[1]
        if not self._places or self._places[-1] != place:
            self._numbers.append(self._next)  # an operator's node is made before the operator runs
            self._places.append(place)
        self._next = next_sequence_number()
        self._last = place
        return place
