"""Which calls made the tensors that operators and layers of a step received: the way back from a value to its cause."""

from __future__ import annotations

from dataclasses import dataclass

from hookcli.hooks.events import HookEvent
from hookcli.hooks.operators.calls import is_whole
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import CONSTANT, TensorOrigins
from hookcli.tensors import tree


@dataclass(frozen=True, slots=True)
class Maker:
    """A call of an operator or a layer: its place, the name of its function or class, and its line if known."""

    fqn: str
    call: int
    name: str
    source: str

    def __str__(self) -> str:
        """sqrt (net.py:8), or 2 (Linear)."""
        return f"{self.name} ({self.source})" if self.source else f"{self.fqn} ({self.name})"


class MadeFrom:
    """Follows what operators and layers receive. Modules with parts make nothing themselves."""

    def __init__(self) -> None:
        self._origins = TensorOrigins(())
        self._makers: list[Maker] = []
        self._from: list[set[int]] = []  # of each maker, the numbers of those that made what it received

    def attach(self, session: HookSession) -> None:
        session.forward(self._leave)

    def _leave(self, event: HookEvent) -> None:
        if event.operator is not None:
            name, source = event.operator.name, event.operator.source
        elif event.module is not None and is_whole(event.module):
            name, source = tree.type_text(event.module), ""
        else:
            return
        received = [x for _, x in tree.arguments(event.args, event.kwargs)]
        numbers = {self._origins.of(x) for x in received}
        self._from.append({number for number in numbers if number is not None and number != CONSTANT})
        self._makers.append(Maker(event.fqn, event.call, name, source))
        for _, x in tree.leaves(event.output):
            note = self._origins.written if any(x is y for y in received) else self._origins.made
            note(x, len(self._makers) - 1)

    def makers(self, fqn: str, call: int) -> list[Maker]:
        """The calls that made what this one received, in their order."""
        numbers = {number for at in self._numbers(fqn, call) for number in self._from[at]}
        return [self._makers[number] for number in sorted(numbers)]

    def users(self, fqn: str, call: int) -> list[Maker]:
        """The calls that received what this one returned."""
        tensors = set(self._numbers(fqn, call))
        return [self._makers[at] for at, numbers in enumerate(self._from) if numbers & tensors]

    def _numbers(self, fqn: str, call: int) -> list[int]:
        return [at for at, maker in enumerate(self._makers) if (maker.fqn, maker.call) == (fqn, call)]
