"""Divides batches into micro-batches, each with its part of the target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hookcli.engine.batches import Batch
from hookcli.engine.inputs import Call, arguments
from hookcli.errors import UsageError
from hookcli.tensors import tree


def samples_of(batch: Batch, *, batched: bool) -> int:
    """The number of samples: dimension 0 of the first tensor, or where not `batched` the length of the first list.

    Raises UsageError where there is no such dimension or list.
    """
    args, kwargs = arguments(batch.inputs)
    for value in (*args, *kwargs.values()):
        if not batched and isinstance(value, (list, tuple)):
            return len(value)
        for _, x in tree.leaves(value) if batched else ():
            if x.dim():
                return x.size(0)
    raise UsageError("the input has no dimension, or list, of samples that can be divided")


def micro_batches(batch: Batch, samples: int, size: int) -> Iterator[Batch]:
    """The parts of a batch of so many `samples`, of `size` samples each; a smaller rest is left out."""
    for begin in range(0, samples - size + 1, size):
        yield part_of_batch(batch, samples, slice(begin, begin + size))


def part_of_batch(batch: Batch, samples: int, rows: slice) -> Batch:
    """These samples of a batch of so many: of tensors along dimension 0, and of lists. The rest is as it was."""
    args, kwargs = arguments(batch.inputs)
    call = Call(
        tuple(_part(x, samples, rows) for x in args), {name: _part(x, samples, rows) for name, x in kwargs.items()}
    )
    return Batch(call, _part(batch.target, samples, rows), batch.described)


def _part(value: Any, samples: int, rows: slice) -> Any:
    if isinstance(value, Tensor):
        return value[rows] if value.dim() and value.size(0) == samples else value
    if isinstance(value, dict):
        return {key: _part(item, samples, rows) for key, item in value.items()}
    if type(value) in (list, tuple):
        tensors = [x for _, x in tree.leaves(value)]
        if len(value) == samples and any(not x.dim() or x.size(0) != samples for x in tensors):
            return value[rows]  # a list of samples
        return type(value)(_part(item, samples, rows) for item in value)
    return value
