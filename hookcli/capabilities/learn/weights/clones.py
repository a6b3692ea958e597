"""Layers whose units all have the same weights: they get the same gradient, so that no training tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.capabilities.learn.losses.lost_head import LAYERS
from hookcli.capabilities.learn.weights.still import first_values, is_trained
from hookcli.hooks.torch_private.modules import part_tables
from hookcli.tensors import tree

_WEIGHTS = 2  # of a unit: a single one may be the same by chance


@dataclass
class Clones:
    """The layers whose units had the same weights at the end of each recorded step so far.

    A layer that begins at zero, as adapters do, has them no more after its first step, or it has never moved.
    """

    began: dict[str, Tensor] | None = None
    """Some of their weights at the end of the first one; None before it."""
    moved: set[str] = field(default_factory=set)
    steps: int = 0

    def fields(self, module: nn.Module, name: Callable[[str], str]) -> dict[str, Any]:
        """The fields of a line, with this step. Waits for an accelerator, while there are such layers."""
        weights = dict(layers(module))
        if self.began is not None:
            weights = {fqn: weight for fqn, weight in weights.items() if fqn in self.began}
        alike = {fqn: weight for fqn, weight in weights.items() if has_clones(weight)}
        if self.began is None:
            self.began = {fqn: first_values(weight) for fqn, weight in alike.items()}
        self.began = {fqn: values for fqn, values in self.began.items() if fqn in alike}
        self.moved |= {fqn for fqn, was in self.began.items() if not torch.equal(was, first_values(alike[fqn]))}
        self.steps += 1
        found = [fqn for fqn in alike if fqn in self.moved]
        if not found:
            return {}
        fqn = found[0]
        return {"clones": f"{len(alike[fqn]):,} units of {name(fqn)}", "cloned": self.steps, "layers": len(found)}


def layers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The trained weights of layers with several units, by the layer's name."""
    for fqn, layer in module.named_modules():
        # Not `layer.weight`: a parametrization would compute it, and spectral_norm change its estimate.
        weight = part_tables(layer)[0].get("weight") if isinstance(layer, LAYERS) else None
        if weight is None or not is_trained(weight) or not tree.is_plain(weight):
            continue
        if len(weight) > 1 and weight.numel() >= _WEIGHTS * len(weight):
            yield fqn, weight.detach()


def has_clones(weight: Tensor) -> bool:
    """True if all units have the same weights. Two of them are compared first. Waits for an accelerator."""
    return torch.equal(weight[0], weight[1]) and bool((weight == weight[:1]).all())
