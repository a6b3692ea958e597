"""Random models, and two references for gradients."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import float64_stats
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from hookcli.probes.activations import ActivationsProbe, InputsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.record.watch import watch
from hookcli.tensors import tree

WIDTH = 6


class Residual(nn.Module):
    """In-place addition of the input, and in-place activation, as torchvision's blocks have them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += x
        return self.act(out)


def run(model: nn.Module, x: Tensor, *, grad: bool, edges: dict[Any, Any] | None = None) -> dict[str, Any]:
    """Run with a fixed seed, and everything that could show a difference. `edges` become gradients at these edges."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        out = model(x * 1.0)
        tensors = [t for _, t in tree.leaves(out) if t.is_floating_point()]
        if grad:
            loss = sum((t * t).sum() for t in tensors)
            if edges:
                found = torch.autograd.grad(loss, list(edges.values()), retain_graph=True, allow_unused=True)
                edges |= dict(zip(edges, found, strict=True))
            loss.backward()
    return {
        "output": [t.detach().clone() for t in tensors],
        "grads": [p.grad for p in model.parameters()],
        "input": x.grad,
        "buffers": [b.clone() for b in model.buffers()],
        "rng": torch.get_rng_state(),
    }


PROBES: dict[str, tuple[Callable[[], Any], bool]] = {
    "activations": (ActivationsProbe, False),
    "inputs": (InputsProbe, False),
    "parameters": (lambda: GradsProbe("parameters"), True),
    "outputs": (lambda: GradsProbe("outputs"), True),
    "inputs' grads": (lambda: GradsProbe("inputs"), True),
}


def assert_grads_match(model: nn.Module, x: Tensor, of: str, rel: float = 1e-5) -> int:
    """hookcli's figures against the references; returns how many were compared."""
    totals = whole_gradients(copy.deepcopy(model), x, of)
    parts = zeros_gradients(copy.deepcopy(model), x, of) if of == "inputs" else totals
    with watch(model, [GradsProbe(of)]) as seen:  # type: ignore[arg-type]
        run(model, x, grad=True)
    report = seen.reports()[0]
    rows = {(row.fqn, row["call"], row["path"]): row for row in report.rows}
    reasons = {(item.fqn, item.path): item.reason for item in report.skipped}
    for fqn, _, path in parts.keys() - rows.keys():
        assert re.search(r"(is|or) a view .* (changed|changes) in place", reasons[fqn, path])
    assert not rows.keys() - parts.keys()
    for key, row in rows.items():
        found, expected = row.stats, float64_stats((totals if row.get("handed_on") else parts)[key])
        # In float32 a gradient that is the sum of large terms is only as good as those: compare on its own scale.
        assert found is not None and found.numel == expected.numel
        scale = max(abs(expected.min), abs(expected.max))
        for name in ("mean", "std", "min", "max"):
            assert abs(getattr(found, name) - getattr(expected, name)) <= rel * scale, (key, name, found, expected)
        assert found.l2 == pytest.approx(expected.l2, rel=rel)
    return len(rows)


def whole_gradients(model: nn.Module, x: Tensor, of: str) -> dict[tuple[str, int, str], Tensor]:
    """The gradient of each tensor that a module returned or received, over all of its uses."""
    edges: dict[tuple[str, int, str], Any] = {}
    calls: dict[str, int] = {}

    def note(fqn: str, found: Any) -> None:
        call = calls[fqn] = calls.get(fqn, -1) + 1
        edges.update({(fqn, call, path): get_gradient_edge(t) for path, t in found if t.requires_grad})

    for fqn, module in model.named_modules():
        if of == "outputs":
            module.register_forward_hook(lambda m, a, o, f=fqn: note(f, tree.leaves(o)))
        else:
            module.register_forward_pre_hook(lambda m, a, k, f=fqn: note(f, tree.arguments(a, k)), with_kwargs=True)
    run(model, x, grad=True, edges=edges)
    return {key: grad for key, grad in edges.items() if grad is not None}


def rebuilt(args: tuple[Any, ...], kwargs: dict[str, Any], change: tree.Change) -> tuple[Any, Any]:
    if len(args) == 1 and not kwargs:
        return (tree.replace(args[0], change),), kwargs
    return tree.replace(args, change), tree.replace(kwargs, change)


def zeros_gradients(model: nn.Module, x: Tensor, of: str) -> dict[tuple[str, int, str], Tensor]:
    zeros: dict[tuple[str, int, str], Tensor] = {}
    calls: dict[str, int] = {}

    def plus_zero(fqn: str, call: int) -> Callable[[str, Tensor], Tensor]:
        def add(path: str, tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            zero = zeros[fqn, call, path] = torch.zeros_like(tensor, requires_grad=True)
            return tensor + zero

        return add

    def number(fqn: str) -> int:
        calls[fqn] = calls.get(fqn, -1) + 1
        return calls[fqn]

    for fqn, module in model.named_modules():
        if of == "outputs":
            module.register_forward_hook(lambda m, a, o, f=fqn: tree.replace(o, plus_zero(f, number(f))))
        else:
            module.register_forward_pre_hook(
                lambda m, a, k, f=fqn: rebuilt(a, k, plus_zero(f, number(f))), with_kwargs=True
            )
    run(model, x, grad=True)
    return {key: zero.grad for key, zero in zeros.items() if zero.grad is not None}
