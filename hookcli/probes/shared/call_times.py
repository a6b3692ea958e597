"""The time that each call of a module takes in forward and in backward: alone, and with its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hookcli.hooks.clock import Timer
from hookcli.hooks.events import HookEvent, NodeInfo
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.node_hooks import LEAF, OUTSIDE
from hookcli.hooks.session import HookSession
from hookcli.table.names import around, owner_of
from hookcli.table.times import INCLUSIVE, CallKey, Times


@dataclass(slots=True)
class OwnTimes:
    """Microseconds of one call without its parts, None if not timed; `around` is the call that it is part of."""

    around: CallKey | None
    forward: float | None = None
    backward: float | None = None


@dataclass(slots=True)
class _Forward:
    around: CallKey | None
    began: Any
    ended: Any = None


class CallTimer:
    """Notes when calls begin and end, and when autograd's nodes begin; `own` tells the times, once the pass is over.

    The time of a node lasts until the next one begins, so that the nodes' times add up to the time of the pass: it has
    the sums of gradients that go to one place, and what autograd itself takes. It belongs to the call that created the
    node, where operators are watched to the operator; the addition to a parameter's `.grad` to the parameter's module.
    A recomputation by activation checkpointing is part of backward.

    `within`: tells whether a backward pass is under way, where the caller calls `end_pass`. Otherwise it is the pass
    that the session announces.
    """

    def __init__(
        self, session: HookSession, timer: Timer, *, backward: bool, within: Callable[[], bool] | None = None
    ) -> None:
        self._session = session
        self._timer = timer
        self._calls: dict[CallKey, _Forward] = {}
        self._nodes: list[tuple[NodeInfo | None, Any]] = []
        self._within = within or (lambda: True)
        self._operators: dict[int, tuple[Any, int]] = {}  # under way, by the number of calls around them
        self._made_in: dict[int, CallKey] = {}
        session.forward_pre(self._enter)
        session.forward(self._leave)
        if session.ops:
            session.before_operators.append(self._begin_operator)
        if backward:
            session.nodes.unwatched_too = True
            session.on(HookKind.NODE_PRE, self._begin_node)
            if within is None:
                session.on(HookKind.ENGINE_CALLBACK, lambda event: self.end_pass())
                session.before_backward(lambda _: self._nodes.clear())  # of a pass that the model ran itself

    def _enter(self, event: HookEvent) -> None:
        around = self._session.calls.caller()
        place = (around.hooked.fqn, around.number) if around else None
        self._calls[event.fqn, event.call] = _Forward(place, self._timer.now())

    def _leave(self, event: HookEvent) -> None:
        now, place = self._timer.now(), (event.fqn, event.call)
        if event.operator is None:
            self._calls[place].ended = now
            return
        made = len(self._session.nodes.made)
        began, first = self._operators.get(len(self._session.calls.running), (now, made))
        self._calls[place] = _Forward((owner_of(event.fqn), event.call), began, now)
        self._made_in |= dict.fromkeys(range(first, made), place)

    def _begin_operator(self, call: Call, function: object) -> None:
        """Note when a function begins that may be an operator, and the number of the first node that it makes."""
        self._operators[len(self._session.calls.running)] = self._timer.now(), len(self._session.nodes.made)

    def _begin_node(self, event: HookEvent) -> None:
        if self._within():
            self._nodes.append((event.node, self._timer.now()))

    def end_pass(self) -> None:
        """End the last node's time: the backward pass is over."""
        self._nodes.append((None, self._timer.now()))

    def own(self) -> dict[CallKey, OwnTimes]:
        """Return the times of each call without its parts, in the order in which calls began. Waits for the device."""
        self._timer.wait()
        ended = {place: call for place, call in self._calls.items() if call.ended is not None}
        spent = {place: self._timer.between(call.began, call.ended) for place, call in ended.items()}
        alone = dict(spent)
        for place, microseconds in spent.items():
            if (outer := self._calls[place].around) in alone:
                alone[outer] = max(alone[outer] - microseconds, 0.0)
        times = {place: OwnTimes(call.around, alone.get(place)) for place, call in self._calls.items()}
        for (made, began), (_, ended) in zip(self._nodes, self._nodes[1:], strict=False):
            if made is not None and (owner := self._owner(made)) is not None:
                times[owner].backward = (times[owner].backward or 0.0) + self._timer.between(began, ended)
        return times

    def _owner(self, made: NodeInfo) -> CallKey | None:
        """The call that a node belongs to; None for a node outside of the model, such as the loss function's."""
        if made.fqn == OUTSIDE:
            return None
        if (operator := self._made_in.get(made.id)) and operator in self._calls and made.fqn == owner_of(operator[0]):
            return operator
        names = [""] if made.fqn == LEAF else [made.fqn, *around(made.fqn)]
        places = ((name, call) for name in names for call in (made.call, 0))
        return next((place for place in places if place in self._calls), None)


def over_passes(passes: Sequence[Mapping[CallKey, OwnTimes]]) -> Times:
    """Combine passes into the times of each call, without its parts and with them.

    A call's own time is its median over the passes. Inclusive times are sums of these medians, so that own times add up
    to the model's.
    """
    around = {place: own.around for each in passes for place, own in each.items()}
    times: dict[CallKey, dict[str, float]] = {}
    for inclusive, alone in INCLUSIVE.items():
        direction = inclusive.removesuffix("_us")
        own: dict[CallKey, float] = {}
        for place in around:
            spent = [getattr(each[place], direction) for each in passes if place in each]
            if known := [time for time in spent if time is not None]:
                own[place] = median(known)
        whole = dict(own)
        for place in reversed(around):  # parts begin after what is around them
            outer = around[place]
            if outer in around and place in whole:
                whole[outer] = whole.get(outer, 0.0) + whole[place]
        for place in filter(whole.__contains__, around):
            times.setdefault(place, {}).update({inclusive: whole[place], alone: own.get(place, 0.0)})
    return times
