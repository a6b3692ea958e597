"""The weights of a model and the tensors that its layers receive and return, as matrices of rows and channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.layer_rows import feature_rows, layer_around, matrices, weight_rows
from hookcli.probes.shared.unmeasured import unmeasured
from hookcli.table import Skipped
from hookcli.table.names import around
from hookcli.tensors import tree
from hookcli.tensors.chunks import cause

Held = Mapping[str, Sequence[tuple[str, Any]]]
"""The matrices of each module that has some: their names and the parameters."""


class Figures(Protocol):
    """Figures of the tensors at one place."""

    calls: int

    def add(self, x: Tensor, leading: int, width: int = 1) -> None:
        """Add a tensor: a matrix whose rows are the places of its `leading` dimensions, with `width` columns for each
        channel."""

    def values(self) -> Mapping[str, Any]:
        """The figures by the names of their columns."""


class LayerProbe(Probe):
    """A probe that adds up figures of weights, and of tensors that layers receive and return.

    A layer is a module that holds weights and has no such modules within, or PyTorch's attention. Its rows stand at its
    name, others at the parameter's, so that no row hides rows of modules within.
    """

    merges_batches = True

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str, str], tuple[dict[str, Any], Figures]] = {}
        self.places: dict[str, str] = {}
        self.left_out: dict[Skipped, None] = {}
        self.held: Held = {}

    def new_figures(self, device: torch.device) -> Figures:
        """Figures without a tensor yet, which will be on this device."""
        raise NotImplementedError

    def attach(self, session: HookSession) -> None:
        """Find the weights and the layers."""
        self.session = session
        modules = dict(session.model.named_modules())
        self.held = held_by(modules)
        self.places = layers_of(modules, self.held)

    def enter(self, event: HookEvent) -> None:
        """Take the tensors that a layer receives."""
        seen = set[int]()
        for path, x in tree.arguments(event.args, event.kwargs):
            if id(x) not in seen and event.fqn in self.places and event.module is not None:
                seen.add(id(x))  # query, key and value are often one tensor
                self.take(self.places[event.fqn], "input", path, event.module, x)

    def take(self, fqn: str, kind: str, path: str, module: nn.Module, x: Tensor) -> None:
        """Add the figures of a tensor to earlier calls' figures, or say why it has none."""
        if not (x.is_floating_point() or x.is_complex() or kind == "weight") or not x.numel():
            return  # numbers of tokens, masks
        if not x.is_floating_point() or not tree.is_plain(x) or tree.layout_of(x):
            self.skip(fqn, path or kind, f"{tree.dtype_text(x)}: no matrix of floating-point numbers in plain memory")
            return
        values: dict[str, Any] = {"fqn": fqn, "kind": kind, "type": tree.type_text(module), "path": path}
        values |= {"shape": tree.shape_of(x), "dtype": tree.dtype_text(x)}
        try:
            with torch.inference_mode(False), torch.no_grad():  # else later calls could not add to the sums
                new = values, self.new_figures(x.device)
                figures = self.seen.setdefault((fqn, kind, path), new)[1]
                figures.add(*(weight_rows if kind == "weight" else feature_rows)(module, x.detach()))
        except (RuntimeError, NotImplementedError) as error:  # a device that lacks an operator is no reason to lose all
            self.skip(fqn, path or kind, f"can't be rounded ({values['dtype']}, {cause(error, x)})")

    def skip(self, fqn: str, path: str, reason: str) -> None:
        """Note once that a tensor has no figures."""
        self.left_out[Skipped(fqn, reason, path)] = None

    def batch_ended(self) -> None:
        """Do nothing: the figures of several batches add up like several calls' figures."""

    def unseen(self) -> list[Skipped]:
        """The layers that did not run, or that no hook can see run."""
        return [item for item in unmeasured(self.session) if item.fqn in self.places]


def held_by(modules: Mapping[str, nn.Module]) -> Held:
    """The matrices of these modules."""
    return {fqn: own for fqn, module in modules.items() if (own := [*matrices(module)])}


def layers_of(modules: Mapping[str, nn.Module], held: Held) -> dict[str, str]:
    """The names at which the rows of layers stand, by the names of the layers."""
    places = {}
    within = {outer for fqn in held for outer in around(fqn)}
    for fqn, own in held.items():
        if isinstance(modules[fqn], nn.MultiheadAttention):
            places[fqn] = f"{fqn}.{own[0][0]}".lstrip(".")
        elif fqn not in within:
            layer = layer_around(fqn)
            places[layer] = layer
    return places
