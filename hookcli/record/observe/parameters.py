"""Rows of a model's parameters in a step: their gradients as the optimizer gets them, and its updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.hooks.torch_private.modules import part_tables
from hookcli.record.observe import updates
from hookcli.record.observe.optimizer_steps import parameter_ids
from hookcli.record.observe.wrappers import PlainNames
from hookcli.report import Reason, Row, Skipped
from hookcli.tensors import tree
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import measure, resolve


class ParameterRows:
    """Measures the parameters whose fqn, or whose module's fqn, `matches`."""

    def __init__(self, model: nn.Module, name: PlainNames, matches: Callable[[str], bool]) -> None:
        self._model = model
        self._name = name
        self._matches = matches
        self._gradients: dict[str, tuple[dict[str, Any], PendingFigures]] = {}
        self._updates: dict[str, Row] = {}

    def take_gradients(self, optimizer: Optimizer | None) -> None:
        """Measure the gradients as they are now: of all parameters, or of those in an optimizer."""
        held = parameter_ids(optimizer) if optimizer else None
        scale = getattr(optimizer, "grad_scale", None)  # for a fused optimizer, which unscales by itself
        for fqn, parameter in self._matching():
            if parameter.grad is not None and (held is None or id(parameter) in held):
                values = _values(self._name(fqn), self._model, fqn, parameter.grad)
                grad = parameter.grad if scale is None else parameter.grad / scale.to(parameter.grad.device)
                self._gradients[fqn] = values, measure(grad)

    def take_updates(self, snapshot: updates.Snapshot) -> None:
        """Measure what a step has changed; if one optimizer steps by another, the outermost counts."""
        rows = updates.rows(self._model, self._name, snapshot.changes(self._matching()))
        self._updates |= {row.fqn: row for row in rows}

    def gradients(self) -> list[tuple[dict[str, Any], PendingFigures]]:
        """The values of each gradient's row, and its pending statistics."""
        return list(self._gradients.values())

    def gradient_rows(self) -> list[Row]:
        """A row per gradient. Waits for an accelerator."""
        measured = resolve([pending for _, pending in self._gradients.values()])
        return [Row(values, stats) for (values, _), stats in zip(self._gradients.values(), measured, strict=True)]

    def without_gradient(self, complete: bool) -> list[Skipped]:
        """Parameters without a gradient, and why. In a step that is not `complete`, gradients were never read."""
        missing = [(fqn, p) for fqn, p in self._matching() if fqn not in self._gradients]
        none = (
            "no gradient reached it" if complete else "gradients are read as the optimizer steps, which did not happen"
        )
        reasons = {True: none, False: "frozen (requires_grad=False)"}
        return [Skipped(self._name(fqn), reasons[p.requires_grad]) for fqn, p in missing] + self.tied()

    def tied(self) -> list[Skipped]:
        """Further names of parameters that have been measured under their first one."""
        first = {id(p): self._name(fqn) for fqn, p in self._matching()}
        modules = self._model.named_modules(remove_duplicate=False)
        every = [(f"{owner}.{name}".lstrip("."), p) for owner, m in modules for name, p in part_tables(m)[0].items()]
        names = [(self._name(fqn), first[id(p)]) for fqn, p in every if id(p) in first]
        return [Skipped(name, f"tied to {other}", kind=Reason.TIED) for name, other in names if name != other]

    def update_rows(self) -> list[Row]:
        """A row per parameter that an optimizer stepped."""
        return list(self._updates.values())

    def without_optimizer(self, optimizers: Iterable[Optimizer]) -> list[Skipped]:
        """Parameters that none of the optimizers holds."""
        held = set[int]().union(*map(parameter_ids, optimizers))
        reason = "not in any optimizer that stepped"
        return [Skipped(self._name(fqn), reason) for fqn, p in self._matching() if id(p) not in held]

    def _matching(self) -> list[tuple[str, nn.Parameter]]:
        found = self._model.named_parameters()
        return [(fqn, p) for fqn, p in found if self._matches(fqn) or self._matches(fqn.rpartition(".")[0])]


def _values(name: str, model: nn.Module, fqn: str, grad: Tensor) -> dict[str, Any]:
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
