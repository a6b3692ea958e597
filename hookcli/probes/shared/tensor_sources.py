"""The calls that made the tensors which operators and modules received, so that checks can trace values back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from hookcli.hooks.events import HookEvent
from hookcli.hooks.operators.calls import is_whole
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import CONSTANT, TensorOrigins
from hookcli.tensors import tree

Place = tuple[str, int]


class TensorSources:
    """A row of kind `made` for each call of an operator or module: `made_from` lists the calls, by fqn and number, that
    made the tensors that it received.

    A module in which operators or other modules run makes nothing itself: its row lists the calls that made its output.
    """

    def __init__(self, session: HookSession) -> None:
        model = session.model
        self._origins = TensorOrigins([*model.parameters(), *model.buffers()])
        self._places: list[Place] = []
        self._found: dict[Place, dict[str, Any]] = {}

    def see(self, event: HookEvent) -> None:
        """Take in a call that has ended."""
        received = [x for _, x in tree.arguments(event.args, event.kwargs)]
        made = [x for _, x in tree.leaves(event.output)]
        own = event.operator is not None or (event.module is not None and is_whole(event.module))
        source = event.operator.source if event.operator else None
        self._found[event.fqn, event.call] = {
            "kind": "made",
            "fqn": event.fqn,
            "call": event.call,
            "made_from": self._makers(received if own else made),
            "source": source,
        }
        if own:
            self._note((event.fqn, event.call), received, made)

    def _makers(self, tensors: Iterable[Tensor]) -> list[Place]:
        numbers = dict.fromkeys(self._origins.of(x) for x in tensors)
        return [self._places[number] for number in numbers if number is not None and number != CONSTANT]

    def _note(self, place: Place, received: Iterable[Tensor], made: Iterable[Tensor]) -> None:
        given = {id(x) for x in received}
        self._places.append(place)
        for x in made:
            note = self._origins.written if id(x) in given else self._origins.made
            note(x, len(self._places) - 1)

    def rows(self) -> list[dict[str, Any]]:
        return [*self._found.values()]
