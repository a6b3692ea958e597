"""The training step whose memory is asked for, and the modules that it recomputes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookcli.capabilities.memory.check_options import OPTIMIZER
from hookcli.errors import UsageError
from hookcli.table.names import is_within_any, name_filter, no_match
from hookcli.tensors import tree

_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    name.lower(): one for name, one in vars(torch.optim).items() if isinstance(one, type)
}
_MOMENTUM = "-momentum"
_FLAGS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Settings of a training step, or of inference: one forward without gradients.

    `optimizer`: the name of one of PyTorch's, "none" for a step that ends with backward. `implementation`: "for-loop",
    "foreach" or "fused"; None for PyTorch's choice on the device. Gradients are released before each forward, as
    `zero_grad()` does. `amp`: the precision in which `torch.autocast` runs the forward. `checkpoint`: patterns of
    modules whose activations `torch.utils.checkpoint` drops and recomputes. `device`: "cpu" or "cuda", whose kernels
    and allocator the figures are of; it need not be at hand. `ops`: "functions" tells what operators of modules hold.
    """

    optimizer: str = OPTIMIZER
    implementation: str | None = None
    inference: bool = False
    amp: torch.dtype | None = None
    checkpoint: Sequence[str] = ()
    device: str = "cpu"
    ops: str | None = None

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
        """The optimizer as PyTorch makes it on the device; None without one, or without parameters.

        Raises UsageError for one that PyTorch does not have in the plan's implementation.
        """
        if self.optimizer == "none" or not parameters:
            return None
        maker, implementation = _CLASSES[self.optimizer.removesuffix(_MOMENTUM)], self.implementation
        settings = {"momentum": 0.9} if self.optimizer.endswith(_MOMENTUM) else {}
        plain = all(type(parameter) in (torch.Tensor, nn.Parameter) for parameter in parameters)  # as PyTorch asks
        if implementation is None and self.device == "cuda" and self.optimizer != "adafactor" and plain:
            implementation = "foreach"  # Adafactor's default is the one that takes less memory
        flags, accepted = _FLAGS.get(implementation or "", {}), signature(maker).parameters
        if not flags.keys() <= accepted.keys():
            names = ", ".join(name for name, needed in _FLAGS.items() if needed.keys() <= accepted.keys())
            wrong = f"--implementation {implementation}: PyTorch's {self.optimizer} has none; choose from: {names}"
            raise UsageError(wrong, option="implementation")
        return maker(parameters, lr=1e-3, **settings, **flags)


def checkpoint_modules(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Checkpoint the outermost modules that the patterns name: in place, for good. Returns their names.

    Raises UsageError for a pattern that names no module.
    """
    chosen = outermost(model, patterns)
    modules = dict(model.named_modules())
    for fqn in chosen:
        modules[fqn].forward = partial(_recomputed, modules[fqn].forward)
    return chosen


def _recomputed(forward: Callable[..., object], *args: object, **kwargs: object) -> object:
    """Run a forward under `checkpoint`; the module's keyword arguments bypass it, as some share its own names."""
    return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False)


def outermost(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """The modules that the patterns of `--match` name and that lie in no other of them.

    Without lists of modules, which never run.
    """
    types = {fqn: tree.type_text(module) for fqn, module in model.named_modules()}
    runs = {fqn: kind for fqn, kind in types.items() if kind not in ("ModuleList", "ModuleDict")}
    matched: set[str] = set()
    for pattern in patterns:
        matches = name_filter(pattern, runs)
        named = [fqn for fqn, kind in runs.items() if matches(fqn, kind)]
        if not named:
            raise UsageError(f"--checkpoint: {no_match(pattern, runs, 'module')}", option="checkpoint")
        matched.update(named)
    return [fqn for fqn in runs if fqn in matched and not is_within_any(fqn, matched)]
