"""The calls that made the tensors which operators and modules received, so that checks can trace values back."""

from __future__ import annotations

from hookcli.hooks.events import HookEvent
from hookcli.hooks.operators.calls import is_whole
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import CONSTANT, TensorOrigins
from hookcli.probes.shared.inventory_part import InventoryPart
from hookcli.tensors import tree


class TensorSources(InventoryPart):
    """A row of kind `made` for each call of an operator or module: `made_from` lists the calls, by fqn and number, that
    made the tensors that it received.

    A module in which operators or other modules run makes nothing itself: its row lists the calls that made its output.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        model = session.model
        self._origins = TensorOrigins([*model.parameters(), *model.buffers()])
        self._places: list[tuple[str, int]] = []
        self._rows: dict[tuple[str, int], dict[str, object]] = {}

    def leave(self, event: HookEvent) -> None:
        if self.session.batch_number:
            return
        received = [x for _, x in tree.arguments(event.args, event.kwargs)]
        made = [x for _, x in tree.leaves(event.output)]
        own = event.operator is not None or (event.module is not None and is_whole(event.module))
        numbers = dict.fromkeys(self._origins.of(x) for x in (received if own else made))
        makers = [self._places[number] for number in numbers if number is not None and number != CONSTANT]
        self._rows[event.fqn, event.call] = {
            "kind": "made",
            "fqn": event.fqn,
            "call": event.call,
            "made_from": makers,
            "source": event.operator.source if event.operator else None,
        }
        if own:
            self._places.append((event.fqn, event.call))
            for x in made:
                note = self._origins.written if any(x is y for y in received) else self._origins.made
                note(x, len(self._places) - 1)

    def rows(self) -> list[dict[str, object]]:
        return [*self._rows.values()]
