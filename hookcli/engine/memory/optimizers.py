"""Optimizers by name, as PyTorch makes them for parameters of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature

import torch
from torch import nn

from hookcli.engine.memory.plan import MemoryPlan
from hookcli.errors import UsageError

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
_FLAGS: dict[str | None, dict[str, bool]] = {
    None: {},
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def make_optimizer(plan: MemoryPlan, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The plan's optimizer; None without one, or without parameters.

    Raises UsageError for one that PyTorch does not have in the plan's implementation.
    """
    if plan.optimizer == "none" or not parameters:
        return None
    maker = _MAKERS[plan.optimizer]
    accepted = signature(maker).parameters
    implementation = plan.implementation or ("foreach" if plan.device == "cuda" else None)
    if plan.implementation is None and plan.optimizer == "adafactor":  # by default the one that takes less memory
        implementation = None
    flags = _FLAGS[implementation]
    if not flags.keys() <= accepted.keys():
        known = [name for name, given in _FLAGS.items() if name and given.keys() <= accepted.keys()]
        wrong = f"--implementation {plan.implementation}: PyTorch's {plan.optimizer} has none"
        raise UsageError(f"{wrong}; choose from: {', '.join(known)}", option="implementation")
    return maker(parameters, lr=1e-3, **flags)
