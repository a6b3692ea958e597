"""Follows the items of a batch through a forward: which operator made each tensor, of what, and where the items are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hookcli.hooks.events import HookEvent
from hookcli.hooks.operators.calls import is_whole
from hookcli.hooks.operators.functions import given_tensors
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import CONSTANT, TensorOrigins, memory_of
from hookcli.probes.base import StatsProbe, describe
from hookcli.tensors import tree

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator, or a layer whose work is not seen (`layer`; `opaque` if it is not one of PyTorch's), and its line.

    `shapes` are the shapes of the tensors that it takes, and `operands` the numbers of the operations that made them,
    below 0 for none. `weights` are the shapes of parameters among them, or of a layer's own, and `made` the shapes of
    the tensors that it returns. `dim` is the dimension that it was given.
    """

    fqn: str
    name: str
    source: str = ""
    operands: tuple[int, ...] = ()
    shapes: tuple[Shape, ...] = ()
    weights: tuple[Shape, ...] = ()
    made: tuple[Shape, ...] = ()
    dim: int | None = None
    layer: bool = False
    opaque: bool = False

    @property
    def place(self) -> str:
        """The operator's name and line, or the layer's type and name, as a message names it."""
        where = self.fqn if self.layer else self.source
        return f"{self.name} ({where})" if where else self.name

    @property
    def scope(self) -> str:
        """The name of the module that runs it."""
        return self.fqn.partition(":")[0]

    @property
    def elements(self) -> int:
        """The number of elements of the first tensor that it returns."""
        return math.prod(self.made[0]) if self.made else 0


class ItemPathsProbe(StatsProbe):
    """The operations of a forward in order, and rows of what they return: `step` is the number of the operation.

    There is a row for each tensor as a whole, and one for each part that may be the item's. Operation 0 stands
    for the model's inputs. `outputs` are the numbers of those that made the model's outputs, with their shapes.
    """

    name = "item-paths"
    operators = True
    fastpath = False

    def __init__(self, batch: int, item: int = 0) -> None:
        super().__init__()
        self._batch, self._item = batch, item
        self.operations: list[Operation] = []
        self.outputs: list[tuple[int, Shape]] = []

    def attach(self, session: HookSession) -> None:
        self._parameters = {memory_of(x) for x in session.model.parameters()}
        self._origins = TensorOrigins((*session.model.parameters(), *session.model.buffers()))
        session.forward_pre(self._enter)
        session.forward(self._see)

    def _enter(self, event: HookEvent) -> None:
        if not event.fqn and not self.operations:
            self._add(event, Operation("", "the input"), [x for _, x in tree.arguments(event.args, event.kwargs)])

    def _see(self, event: HookEvent) -> None:
        made = [x for _, x in tree.leaves(event.output)]
        if event.operator:
            weights = [x for x in given_tensors(event.args, event.kwargs) if memory_of(x) in self._parameters]
            one = Operation(event.fqn, event.operator.name.strip("_"), event.operator.source, weights=_shapes(weights))
            self._add(event, one, made)
        elif event.module is not None:
            if not event.fqn:
                self.outputs = [(self._origin(x), tuple(x.shape)) for x in made]
            whole = is_whole(event.module)
            if whole or any(self._origins.of(x) is None for x in made):
                weights = [*event.module.parameters()]
                one = Operation(event.fqn, tree.type_text(event.module), weights=_shapes(weights), layer=True)
                self._add(event, replace(one, opaque=not whole), made)

    def _origin(self, x: Tensor) -> int:
        origin = self._origins.of(x)
        return CONSTANT if origin is None else origin

    def _add(self, event: HookEvent, operation: Operation, made: list[Tensor]) -> None:
        number = len(self.operations)
        tensors = given_tensors(event.args, event.kwargs) if number else []
        dim = event.kwargs.get("dim", event.args[1] if len(event.args) > 1 else None)
        operation = replace(operation, operands=tuple(map(self._origin, tensors)), shapes=_shapes(tensors))
        self.operations.append(replace(operation, made=_shapes(made), dim=dim if type(dim) is int else None))
        known = {id(x) for x in tensors}
        for output, x in enumerate(made):
            note = self._origins.written if id(x) in known else self._origins.made
            note(x, number)
            values = describe(event, "") | {"step": number, "output": output}
            x = weighted(x.detach())
            self.take(values | {"part": None}, x)
            for dim in range(x.dim() if tree.is_dense(x) else 0):
                if length := first_part(tuple(x.shape), dim, self._batch):
                    self.take(values | {"part": dim}, x.narrow(dim, self._item * length, length))


def first_part(shape: Shape, dim: int, batch: int) -> int:
    """The length of an item's part along a dimension that has the batch, alone or before others; 0 for none."""
    whole = shape[dim] == batch or (dim == 0 and shape[0] > batch and shape[0] % batch == 0)
    return shape[dim] // batch if whole else 0


def _shapes(tensors: Iterable[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(x.shape) for x in tensors)


def weighted(x: Tensor) -> Tensor:
    """The tensor times other weights at each place: statistics of normalized values are alike without."""
    if not tree.is_plain(x) or not x.numel():
        return x
    x = x if x.is_floating_point() or x.is_complex() else x.float()
    for dim, size in enumerate(x.shape):
        weights = torch.arange(size, dtype=torch.float64).mul_(0.618).frac_().add_(1)
        x = x * weights.to(x.device, x.dtype).view(-1, *[1] * (x.dim() - dim - 1))
    return x
