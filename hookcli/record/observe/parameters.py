"""Rows of a model's parameters in a step: their gradients as the optimizer gets them, and what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.record.observe import updates
from hookcli.record.observe.clocks import ids
from hookcli.record.observe.names import Names
from hookcli.report import Row, Skipped
from hookcli.tensors import tree
from hookcli.tensors.stats import Pending, measure, resolve


class ParameterRows:
    """Those of parameters that are looked at, by their names or their modules': `matches` says so of an fqn."""

    def __init__(self, model: nn.Module, name: Names, matches: Callable[[str], bool]) -> None:
        self._model = model
        self._name = name
        self._matches = matches
        self._gradients: dict[str, tuple[dict[str, Any], Pending]] = {}
        self._updates: dict[str, Row] = {}

    def take_gradients(self, optimizer: Optimizer | None) -> None:
        """The gradients as they are now; of all, or of those that an optimizer has."""
        held = ids(optimizer) if optimizer else None
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer unscales for itself
        for fqn, parameter in self._watched():
            if parameter.grad is not None and (held is None or id(parameter) in held):
                values = _described(self._name(fqn), self._model, fqn, parameter.grad)
                grad = parameter.grad if scale is None else parameter.grad / scale.to(parameter.grad.device)
                self._gradients[fqn] = values, measure(grad)

    def take_updates(self, snapshot: updates.Snapshot) -> None:
        """What a step has done; of optimizers that step by others, what the outermost has."""
        rows = updates.rows(self._model, self._name, snapshot.changes(self._watched()))
        self._updates |= {row.fqn: row for row in rows}

    def gradients(self) -> list[tuple[dict[str, Any], Pending]]:
        """What a row says of each gradient, and its statistics."""
        return list(self._gradients.values())

    def gradient_rows(self) -> list[Row]:
        """A row per gradient. On an accelerator this waits."""
        measured = resolve([pending for _, pending in self._gradients.values()])
        return [Row(values, stats) for (values, _), stats in zip(self._gradients.values(), measured, strict=True)]

    def without_gradient(self, complete: bool) -> list[Skipped]:
        """Those of which there is none, and why; the gradients of a step that is not `complete` were never read."""
        missing = [(fqn, p) for fqn, p in self._watched() if fqn not in self._gradients]
        none = "no gradient reached it" if complete else "gradients are read as the optimizer steps, which it did not"
        reasons = {True: none, False: "frozen (requires_grad=False)"}
        return [Skipped(self._name(fqn), reasons[p.requires_grad]) for fqn, p in missing]

    def update_rows(self) -> list[Row]:
        """A row per parameter that a step was made of."""
        return list(self._updates.values())

    def unmoved(self, optimizers: Iterable[Optimizer]) -> list[Skipped]:
        """Those that none of the optimizers has."""
        held = set[int]().union(*map(ids, optimizers))
        reason = "not in any optimizer that stepped"
        return [Skipped(self._name(fqn), reason) for fqn, p in self._watched() if id(p) not in held]

    def _watched(self) -> list[tuple[str, nn.Parameter]]:
        found = self._model.named_parameters()
        return [(fqn, p) for fqn, p in found if self._matches(fqn) or self._matches(fqn.rpartition(".")[0])]


def _described(name: str, model: nn.Module, fqn: str, grad: Tensor) -> dict[str, Any]:
    return {
        "fqn": name,
        "kind": "parameter",
        "type": tree.type_text(model.get_submodule(fqn.rpartition(".")[0])),
        "calls": 1,
        "index": 0,
        "path": "",
        "shape": tree.shape_of(grad),
        "dtype": tree.dtype_text(grad),
    } | ({"sharded": True} if tree.is_sharded(grad) else {})
