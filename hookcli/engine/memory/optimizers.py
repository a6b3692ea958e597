"""Optimizers by name, as PyTorch makes them for parameters of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from hookcli.engine.memory.plan import MemoryPlan

_MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd-momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adafactor": torch.optim.Adafactor,
}
_FLAGS: dict[str | None, dict[str, bool]] = {None: {}, "for-loop": {"foreach": False}, "foreach": {"foreach": True}}


def make_optimizer(plan: MemoryPlan, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The plan's optimizer; None without one, or without parameters."""
    if plan.optimizer == "none" or not parameters:
        return None
    flags: dict[str, Any] = _FLAGS[plan.implementation]
    return _MAKERS[plan.optimizer](parameters, lr=1e-3, **flags)
