"""The parts of two models that are compared: those selected, by A's names, that run compiled on neither side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookcli.diff.align import Alignment
from hookcli.engine.lockstep.compiled import outermost, unseen_parts
from hookcli.engine.lockstep.lockstep import A
from hookcli.engine.lockstep.side import Side
from hookcli.hooks.select import Select
from hookcli.table.names import operator_owner

Names = tuple[set[str], set[str]]


class Watched:
    """The test of a side's modules and operators.

    `hidden`: the modules of each side without hooks, because they or their counterparts are parts of compiled modules.
    """

    def __init__(self, sides: Sequence[Side], alignment: Alignment, select: Select | None) -> None:
        self.alignment = alignment
        self._model, self._select = sides[A].model, select
        parts = [unseen_parts(side.model, side.compile) for side in sides]
        self.hidden = self._on_both(*parts)
        compiled = [{*outermost(side.model, side.compile)} if side.compile else set[str]() for side in sides]
        self._without_operators = self._on_both(*(own | more for own, more in zip(parts, compiled, strict=True)))

    def __call__(self, side: int, fqn: str, part: Any) -> bool:
        """True if a module, or an operator by its function, is compared."""
        owner = operator_owner(fqn)
        if fqn in self.hidden[side] or owner in self._without_operators[side]:
            return False
        if self._select is None or side == A:
            return self._select is None or self._select(fqn, part)
        name = self.alignment.name_in(A, fqn)
        if name is None:
            return False
        return self._select(name, self._model.get_submodule(name) if owner is None else part)

    def _on_both(self, a: set[str], b: set[str]) -> Names:
        """These modules of each side, and the counterparts of the other's."""
        to_b, to_a = self.alignment.in_b, self.alignment.in_a
        of_a = a | {to_a[fqn] for fqn in b & to_a.keys()}
        return of_a, b | {to_b[fqn] for fqn in of_a & to_b.keys()}
