"""The layers of a model that can be rounded, and the changes of one run: the weights and the inputs of some of them."""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookcli.capabilities.formats.layers import held_by, layers_of
from hookcli.capabilities.formats.layout import ACTIVATIONS, WEIGHTS
from hookcli.engine.changed_runs import ChangedWeight
from hookcli.hooks.edits.base import Edit
from hookcli.probes.shared.layer_rows import laid_out_as, layer_around, rounded_input, rounded_weight
from hookcli.table import Reason, Skipped
from hookcli.table.formatting import counted
from hookcli.table.names import in_words
from hookcli.tensors import tree


@dataclass(frozen=True)
class Layer:
    """A layer: its weights, or what their parametrizations compute them from, each with the module as whose weight it
    is laid out; and the module whose inputs are rounded, if any is."""

    fqn: str
    type: str
    weights: Sequence[tuple[nn.Module, nn.Parameter]] = ()
    receives: str | None = None


@dataclass(frozen=True)
class Rounding:
    """One run's change: these layers in one format."""

    layers: Sequence[Layer]
    form: str
    model: nn.Module

    @property
    def name(self) -> str:
        """The layer, or the number of layers, and the format."""
        what = in_words(self.layers[0].fqn) if len(self.layers) == 1 else counted(len(self.layers), "layer")
        return f"{what} in {self.form}"

    def edits(self) -> list[Edit]:
        """The edits that round what the layers receive."""
        edits = []
        for fqn in (layer.receives for layer in self.layers if layer.receives is not None):
            rounds = partial(round_plain, module=self.model.get_submodule(fqn), form=self.form)
            edits.append(Edit(f"{fqn}:input={self.form}", glob.escape(fqn), "input", self.form, rounds))
        return edits

    def weights(self) -> list[ChangedWeight]:
        """The weights that change, and how."""
        held = (weight for layer in self.layers for weight in layer.weights)
        return [(w, ..., partial(rounded_weight, module=module, form=self.form)) for module, w in held]


def round_plain(x: Tensor, *, module: nn.Module, form: str) -> Tensor:
    """An input of a module, rounded if it has real numbers in plain memory."""
    return rounded_input(x, module, form) if x.is_floating_point() and tree.is_plain(x) and x.numel() else x


def roundable(
    model: nn.Module,
    of: Collection[str],
    chosen: Mapping[str, nn.Module],
    received: Mapping[str, bool],
    changing: Collection[str],
    skipped: dict[Skipped, None],
) -> Iterator[Layer]:
    """The layers among the `chosen` modules, in their order; of those that share a weight, the first has it.

    `received`: the modules that were called, and True for those that got floating-point tensors; `changing` are those
    that changed these in place. `skipped` gets the weights and the inputs that are left out.
    """
    owners, modules = dict[int, str](), dict(model.named_modules())
    held = held_by(modules)
    places = [fqn for fqn in layers_of(modules, held) if fqn in chosen]
    inputs = roundable_inputs(places, received, changing, skipped, of) if ACTIVATIONS in of else set()
    parts = defaultdict[str, list[str]](list)
    for part in held if WEIGHTS in of else ():
        parts[layer_around(part)].append(part)
    for fqn, module in chosen.items():
        each = [(part, w) for part in parts[fqn] for w in roundable_weights(part, held[part], owners, skipped)]
        weights = [(laid_out_as(modules, part), w) for part, w in each]
        if weights or fqn in inputs:
            receives = fqn if fqn in inputs else None
            yield Layer(fqn, tree.type_text(module), weights, receives)


def roundable_inputs(
    places: Sequence[str],
    received: Mapping[str, bool],
    changing: Collection[str],
    skipped: dict[Skipped, None],
    of: Collection[str],
) -> set[str]:
    """The layers that were called with floating-point tensors, and do not write into them.

    Others may read what a layer writes into its input; a rounded input would keep it from them.
    """
    rest = "so only its weights are rounded" if WEIGHTS in of else "so nothing of it is rounded"
    for fqn in places:
        if fqn not in received:
            skipped[Skipped(fqn, f"not seen to be called, {rest}")] = None
        elif fqn in changing:
            skipped[Skipped(fqn, f"it changes what it receives in place, {rest}")] = None
    return {fqn for fqn in places if received.get(fqn) and fqn not in changing}


def roundable_weights(
    fqn: str, held: Sequence[tuple[str, Any]], owners: dict[int, str], skipped: dict[Skipped, None]
) -> Iterator[nn.Parameter]:
    """The weights of a module that no module before it has, and that are real numbers in plain memory."""
    for name, parameter in held:
        full = f"{fqn}.{name}".lstrip(".")
        owner = owners.setdefault(id(parameter), full)
        if owner != full:
            skipped[Skipped(full, f"tied to {owner}, and rounded there", kind=Reason.TIED)] = None
        elif not parameter.is_floating_point() or not tree.is_plain(parameter):
            skipped[Skipped(full, f"{tree.dtype_text(parameter)}: stays as it is")] = None
        else:
            yield parameter
