"""Tensors that a model computes with as with weights, although they are plain attributes of its modules."""

from __future__ import annotations

from typing import Any
from weakref import ref

from torch import Tensor

from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import version_of
from hookcli.hooks.tensor_uses import TensorUses
from hookcli.probes.shared.inventory_part import InventoryPart
from hookcli.probes.shared.unregistered import plain_tensors
from hookcli.tensors import tree


class PlainWeights(InventoryPart):
    """Rows of kind `plain_weight`, for the floating-point tensors that were used as weights and stayed as they were.

    Functions are watched only in a model that has such attributes; most have none.
    """

    def __init__(self, session: HookSession) -> None:
        super().__init__(session)
        plain = plain_tensors(session.model)
        floats = [each for each in plain if (x := each[2]).is_floating_point() and tree.is_plain(x) and x.numel() > 1]
        self._held = [(fqn, name, ref(x), version_of(x)) for fqn, name, x in floats]
        self._uses = TensorUses(session, [x for *_, x in floats]) if floats else None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each; the values are read back here."""
        used = self._uses.as_weights - self._uses.moved if self._uses else set()
        if not used:
            return []
        still = {id(x) for *_, x in plain_tensors(self.session.model)}
        held = [
            (fqn, name, reference(), before)
            for fqn, name, reference, before in map(self._held.__getitem__, sorted(used))
        ]
        return [
            {"kind": "plain_weight", "fqn": fqn, "name": name, "shape": tree.shape_of(x), "params": x.numel()}
            for fqn, name, x, before in held
            if x is not None and id(x) in still and version_of(x) == before and not _is_table(x)
        ]


def _is_table(x: Tensor) -> bool:
    """True for whole numbers that are not all alike, such as a mask, positions or the kernel of a filter."""
    x = x.detach()
    return bool((x == x.round()).all()) and bool((x != x.flatten()[0]).any())
