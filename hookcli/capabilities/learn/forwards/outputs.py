"""Outputs that no longer depend on the input: the same for every row of a batch; and inputs that are that, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.capabilities.learn.lines import ROWS
from hookcli.hooks.events import HookEvent
from hookcli.hooks.torch_private.modules import BatchNorm, Convolution, InstanceNorm
from hookcli.probes.shared.module_facts import acts_in_training
from hookcli.table.formatting import number
from hookcli.tensors import tree

_ROWS, _VALUES, _OUTPUTS = 32, 4096, 8  # of a batch that are compared
_ROUNDING, _COLLAPSED = 1e-6, 0.01  # of the largest output; of that of embeddings
_UNIT = 1e-3  # by which a norm is off 1
_LAYERS = (nn.Linear, nn.RNNBase, Convolution)
_INDICES = 8  # of an embedding in a step, at least
_EMBEDDING = 8  # numbers, at least: four of norm 1 are a rotation
_NUMBERS = 4  # of a row: fewer may be a constant on purpose, as for an intercept or a point of a boundary


class Alike:
    """The first rows of what a model received and returned in a step; the figures stay on the device."""

    def __init__(self) -> None:
        self._differ: list[Tensor] = []
        self._rows = 0
        self._spreads: list[tuple[Tensor, Tensor, Tensor]] = []
        self._norms: list[Tensor] = []
        self._largest: list[Tensor] = []
        self._varied: list[Tensor] = []
        self._dense: list[Tensor] = []
        self._same: list[tuple[Tensor, Tensor, Tensor]] = []
        self._measured = False
        self.unknown = False
        """True if the model received something else as well."""

    def receive(self, x: Tensor) -> None:
        """Take a tensor that the model received. Waits for nothing."""
        if x.numel():
            self._same.append(sameness(x))
        if x.dim() and len(x) > 1 and x.numel():
            self._rows = self._rows or len(x)
            rows = sample(x)
            self._differ.append((rows != rows[:1]).any())
            if x.is_floating_point():
                values = rows.float()
                size = values.square().mean().sqrt()
                self._largest.append(size)
                self._dense.append((values != 0).float().mean())
                self._varied.append(values.var(dim=0, correction=0).mean().sqrt() / size)  # at each place, by row
                self._measured = self._measured or x.numel() >= _NUMBERS * len(x)

    def returned(self, outputs: Sequence[Tensor]) -> None:
        """Take the outputs that have a row for each of the input, and a gradient."""
        for x in outputs if len(self._spreads) < _OUTPUTS else ():
            fits = tree.is_plain(x) and x.is_floating_point() and x.dim() > 1 and len(x) == self._rows
            if fits and x.requires_grad and x.numel():
                rows = sample(x).float()
                self._spreads.append(((rows - rows[:1]).abs().amax(), rows.abs().amax(), rows[0, 0]))
                off = (some_rows(x).float().flatten(1).norm(dim=1) - 1).abs().amax()
                self._norms.append(off if x[0].numel() >= _EMBEDDING else torch.tensor(math.inf))

    def size(self) -> float:
        """The largest root mean square of an input; 0 if none is known. Waits for an accelerator."""
        return max(filter(math.isfinite, map(float, self._largest)), default=0.0)

    def fields(self, model: nn.Module) -> dict[str, Any]:
        """The fields of a line on the inputs. Waits for an accelerator."""
        fill = self.fill()
        varied = max(filter(math.isfinite, map(float, self._varied)), default=None)
        alike_too = bool(fill) and self.alike(model)
        dense = max(map(float, self._dense), default=None)
        directions = self.are_directions()
        return {
            "directions": directions,
            "inputs": self.size(),
            "varied": varied,
            "dense": dense,
            "fill": fill,
            "alike_too": alike_too,
        }

    def fill(self) -> str:
        """The one number that all floating-point inputs hold; ROWS if only their rows are the same; else "".

        The rows of all other inputs must be the same as well. Waits for an accelerator.
        """
        if self.unknown or not self._measured or not all(bool(rows) for rows, _, _ in self._same):
            return ""
        numbers = [float(x) if every else math.nan for _, every, x in self._same if x.is_floating_point()]
        return number(numbers[0]) if len({*numbers}) == 1 and math.isfinite(numbers[0]) else ROWS

    def alike(self, model: nn.Module) -> bool:
        """True if the rows of each output are the same, or differ and the model drops values. Waits for an accelerator.

        Else it draws numbers itself, as a generator may.
        """
        alike = all(bool(spread <= _ROUNDING * largest) for spread, largest, _ in self._spreads)
        return bool(self._spreads) and (alike or any(map(drops, model.modules())))

    def judge(self) -> bool | None:
        """True if all rows of each output are the same though the input's differ; None if that is not known.

        A sigmoid that is certain of each row returns 1, or next to 0, which says nothing. Waits for an accelerator.
        """
        if not self._spreads or not any(map(bool, self._differ)):
            return None
        figures = [tuple(map(float, one)) for one in self._spreads]
        if any(min(abs(value), abs(1 - abs(value))) < _ROUNDING for _, _, value in figures):
            return None
        near = _COLLAPSED if self.are_directions() else _ROUNDING
        return all(spread <= near * largest for spread, largest, _ in figures)

    def are_directions(self) -> bool:
        """True if the rows of each output have a norm of 1, as embeddings have. Waits for an accelerator."""
        return bool(self._norms) and all(float(off) < _UNIT for off in self._norms)


@dataclass
class FirstInput:
    """The inputs of the first layer with weights and of all embeddings, in one step; the figures stay on the device."""

    size: Tensor | None = None
    """The root mean square."""
    indices: dict[str, Tensor] = field(default_factory=dict)
    """For each embedding whether all its indices are one number."""
    _seen: bool = False

    def enter(self, event: HookEvent) -> None:
        """Look at what a module is about to receive. Waits for nothing."""
        module = event.module
        if isinstance(module, nn.Embedding) and module.num_embeddings > 1:
            self.look_at_indices(event)
        if self._seen or not event.fqn or module is None or next(module.parameters(recurse=False), None) is None:
            return
        self._seen = True
        x = next(filter(tree.is_plain, tree.received(event.args, event.kwargs)), None)
        if x is not None and isinstance(module, _LAYERS) and x.is_floating_point() and x.numel():
            self.size = sample(x).float().square().mean().sqrt()

    def look_at_indices(self, event: HookEvent) -> None:
        """Note whether an embedding is about to receive one index alone. Waits for nothing."""
        for x in filter(tree.is_plain, tree.received(event.args, event.kwargs)):
            _, same, _ = sameness(x) if x.numel() >= _INDICES else [torch.zeros((), dtype=torch.bool)] * 3
            before = self.indices.get(event.fqn)
            self.indices[event.fqn] = same if before is None else same & before.to(same.device)

    def fields(self) -> dict[str, Any]:
        """The fields of a line: 0 if it is not known, as behind an embedding or a normalization. May wait."""
        size = float(self.size) if self.size is not None else 0.0
        one_each = all(map(bool, self.indices.values()))
        first = next(iter(self.indices), "") if one_each else ""
        return {"entered": size if math.isfinite(size) else 0.0, "one_index": first}


def sameness(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tell whether all rows of a tensor are the same, then whether all its values are; and return its first value.

    A single row counts as the same if all its values are. Waits for nothing.
    """
    with torch.no_grad():
        values = x.detach()
        first = values[(0,) * x.dim()]
        every = (values == first).all()
        return (values == values[:1]).all() if x.dim() and len(x) > 1 else every, every, first


def drops(module: nn.Module) -> bool:
    """True if a module drops values in training mode."""
    return acts_in_training(module) and not isinstance(module, (BatchNorm, InstanceNorm))


def some_rows(x: Tensor) -> Tensor:
    """Rows from all over a tensor, as many as are looked at."""
    return x.detach()[:: max(len(x) // _ROWS, 1)][:_ROWS]


def sample(x: Tensor) -> Tensor:
    """Some values of some rows, from all over both: the first ones may be the same, as a first token or class is."""
    with torch.no_grad():
        some = some_rows(x)
        rows = some.flatten(1) if x.dim() > 1 else some[:, None]
        return rows[:, :: max(rows.shape[1] // _VALUES, 1)]
