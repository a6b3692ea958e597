"""The ways to compare two models that `scripts/bench diff` times. Imports torch, as _bench_work does."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from _bench_work import Actions, build, forward
from torch import Tensor, nn


def side_by_side(name: str) -> Actions:
    """Two models on one input: run alone, compared in step, and compared after both kept every output."""
    from hookcli.engine.lockstep import Side, compare

    (a, x), (b, _) = build(name), build(name)
    with torch.no_grad():
        for parameter in b.parameters():  # equal tensors are compared faster
            parameter.mul_(1.0001)
    return {
        "two plain forwards": lambda: (forward(a, x), forward(b, x)),
        "hookcli diff": lambda: compare(Side(a, x), Side(b, x)),
        "DebugMode, hashes of both compared": partial(hashing, a, b, x),
        "keep all outputs, compare in float64": partial(keeping, a, b, x),
    }


def hashing(a: nn.Module, b: nn.Module, x: Tensor) -> list[dict[str, Any]]:
    """PyTorch's own comparison of two runs: the L1 norm of what each operator returned."""
    from torch.utils._debug_mode import DebugMode

    logs = []
    for model in (a, b):
        with DebugMode() as mode, DebugMode.log_tensor_hashes():
            forward(model, x)
        logs.append(mode.logs)
    return DebugMode.check_hash_mismatches(*logs)


def keeping(a: nn.Module, b: nn.Module, x: Tensor) -> list[tuple[float, ...]]:
    """The comparison that people write by hand."""
    kept: list[list[Tensor]] = [[], []]
    for model, outputs in zip((a, b), kept, strict=True):
        hooks = [
            m.register_forward_hook(lambda m, args, y, o=outputs: o.append(y.detach().clone())) for m in model.modules()
        ]
        forward(model, x)
        for hook in hooks:
            hook.remove()
    return [_apart(p.double(), q.double()) for p, q in zip(*kept, strict=True)]


def _apart(p: Tensor, q: Tensor) -> tuple[float, ...]:
    error = p - q
    cosine = nn.functional.cosine_similarity(p.flatten(), q.flatten(), dim=0)
    return tuple(v.item() for v in (error.abs().max(), error.abs().mean(), error.norm() / p.norm(), cosine))
