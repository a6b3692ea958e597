"""Epochs whose batches are the slices of a tensor, one after another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from weakref import ref

from torch import Tensor

from hookcli.tensors import tree

_SURE = 16.0  # bits: batches of a random order are in these places once in 2**16 trainings


def first_row(batch: Tensor) -> int | None:
    """The row of the tensor that a batch is a slice of with which it begins; None if it is none of a larger one."""
    whole = tree.base(batch)
    alike = batch.dim() == whole.dim() > 0 and batch.shape[1:] == whole.shape[1:] and batch.stride() == whole.stride()
    if not alike or not 0 < len(batch) < len(whole) or not whole.stride(0):
        return None
    return int(batch.storage_offset() - whole.storage_offset()) // whole.stride(0)


@dataclass
class Order:
    """Where the batches of recorded steps are in the tensor that they are slices of."""

    _rows: dict[int, int] = field(default_factory=dict)
    """For each recorded step the first row of its batch."""
    _begins: dict[int, list[float]] = field(default_factory=dict)
    """The first values of the batch that begins with this row."""
    _again: bool = False
    """True if some of these were seen again, in a later epoch."""
    _whole: ref[Tensor] | None = None
    _size: int = 0
    """The rows of the first batch."""
    _differ: bool = False

    def give_up(self) -> None:
        """A batch is no slice, or the model also receives something else, as a state that goes on."""
        self._differ = True

    def note(self, step: int, whole: ref[Tensor], row: int, size: int, values: Tensor) -> None:
        """Note a recorded step, whose batch begins with this row of a tensor. May wait.

        `size`: its rows; `values`: its first ones. If those of a row change, the program shuffles the tensor in place.
        """
        if whole() is None or (self._whole is not None and self._whole() is not whole()):
            self._differ = True
        if self._differ:
            return
        begins = values.tolist()
        self._again = self._again or row in self._begins
        self._differ = self._begins.setdefault(row, begins) != begins
        self._whole, self._size = whole, self._size or size
        self._rows[step] = row

    def epochs(self) -> int:
        """The number of epochs that have begun, if each has its batches in one order; 0 if not, or for the first."""
        whole = self._whole() if self._whole is not None else None
        if self._differ or whole is None or not self._again:
            return 0
        return max(self._epochs_of(math.ceil(len(whole) / self._size)), self._epochs_of(len(whole) // self._size))

    def _epochs_of(self, batches: int) -> int:
        """The number of epochs of so many batches that have begun, if all recorded batches are in turn; else 0."""
        in_turn = all(row == step % batches * self._size for step, row in self._rows.items())
        sure = len(self._rows) * math.log2(batches) >= _SURE
        last = max(self._rows)
        return last // batches + 1 if in_turn and sure and last >= batches else 0
