"""Normalizations that are frozen with all that comes before them, whose running statistics a training moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.capabilities.learn.weights.still import first_values
from hookcli.capabilities.learn.weights.wiring import has_statistics
from hookcli.hooks.events import HookEvent
from hookcli.hooks.torch_private.modules import BatchNorm, Norm
from hookcli.probes.shared.module_facts import in_checkpoint
from hookcli.record.observe.parts import BegunStep
from hookcli.table.names import around
from hookcli.tensors import tree

_MOMENTUM = 0.9  # of 1, which the last batch has in the statistics: PyTorch's default is 0.1
_DRIFT = 0.2  # standard deviations: a batch in training moves them by less if its data are as before


def is_frozen(event: HookEvent) -> bool:
    """True if a normalization that gathers statistics is about to run, frozen, on what nothing that is trained made."""
    norm = event.module
    if not isinstance(norm, Norm) or not (norm.training and norm.track_running_stats and norm.momentum is not None):
        return False
    if any(x.requires_grad for x in tree.received(event.args, event.kwargs)):
        return False
    parameters = [*norm.parameters(recurse=False)]
    frozen = parameters and not any(p.requires_grad for p in parameters)
    return bool(frozen) and (torch.is_grad_enabled() or not in_checkpoint())


@dataclass
class Came:
    """The running statistics, and some values of the parameters, with which a normalization came to the first step.

    `gathered`: whether the statistics are others than those that it was made with, on its device.
    """

    mean: Tensor
    scale: Tensor
    values: list[Tensor]
    gathered: Tensor

    @classmethod
    def of(cls, norm: Any) -> Came:
        """Waits for nothing."""
        mean, var = norm.running_mean.clone(), norm.running_var
        values = [first_values(p) for p in norm.parameters(recurse=False)]
        return cls(mean, (var + norm.eps).sqrt(), values, mean.any() | (var != 1).any())

    def drift(self, norm: Any) -> Tensor:
        """How far the statistics have moved since then, in standard deviations: a root mean square over channels."""
        now = Came.of(norm)
        mean, scale = (now.mean - self.mean) / self.scale, (now.scale / self.scale).log()
        kept = all(map(torch.equal, self.values, now.values))  # else a copy of what is trained, which follows it
        return torch.maximum(mean.square().mean(), scale.square().mean()).sqrt().float() * kept


@dataclass
class FrozenNorms:
    """The normalizations that were frozen, and in training mode, in each recorded step from step 0 on.

    Those that came without statistics are left out, as they must gather some, and those in training mode inside a
    module in eval mode, which is meant.
    """

    came: dict[str, Came] = field(default_factory=dict)
    judged: set[str] | None = None
    """The names of the normalizations that were frozen in every step so far; None before the first."""

    def enter(self, event: HookEvent, seen: set[str]) -> None:
        """Note a normalization that is about to run, in those that this step has `seen`. Waits for nothing."""
        if is_frozen(event):
            seen.add(event.fqn)
            norm: Any = event.module
            if self.judged is None and event.fqn not in self.came and has_statistics(norm):
                self.came[event.fqn] = Came.of(norm)

    def fields(self, step: int, begun: BegunStep, seen: set[str]) -> dict[str, Any]:
        """The fields of a line, with this step. Waits for an accelerator."""
        modules = dict(begun.module.named_modules())
        if self.judged is None:
            gathered = {fqn for fqn, came in self.came.items() if came.gathered}
            self.judged = gathered if step == 0 else set()
        self.judged &= {fqn for fqn in seen if all(modules[one].training for one in around(fqn) if one in modules)}
        self.judged &= modules.keys()
        self.came = {fqn: came for fqn, came in self.came.items() if fqn in self.judged}
        drifts = {fqn: float(came.drift(modules[fqn])) for fqn, came in self.came.items()}
        far = [fqn for fqn, drift in drifts.items() if drift >= _DRIFT]
        if not far:
            return {}
        return {
            "norm": f"{begun.name(far[0])} ({type(modules[far[0]]).__name__})",
            "norms": len(far),
            "drift": max(drifts.values()),
        }


def of_last_batch(model: nn.Module, name: Callable[[str], str]) -> str:
    """Words on the first batch normalization whose statistics are next to those of the last batch; "" if none are."""
    for fqn, module in model.named_modules():
        gathers = isinstance(module, BatchNorm) and module.training and module.track_running_stats
        if gathers and (module.momentum or 0) >= _MOMENTUM:
            return f"{name(fqn)} ({type(module).__name__}) has a momentum of {module.momentum:g}"
    return ""
