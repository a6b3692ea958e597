"""The batches of recorded steps: whether each saw the same one, and whether the program has others."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from hookcli.capabilities.learn.forwards.order import Order, first_row
from hookcli.capabilities.learn.lines import LOADER, ROWS
from hookcli.capabilities.learn.weights.still import first_values
from hookcli.hooks.torch_private.exchange import batches_in_all, batches_yielded, sampler_weights, takes_in_order
from hookcli.tensors import tree
from hookcli.tensors.checksum import checksum

_TENSORS = 16  # of a step
_AFTER = 2  # equal batches: then the tensors of the program are searched, once
_COLUMNS, _CANDIDATES = 16, 64
_PART = 4  # times the rows of a batch: less may be all that has labels


class Taken(NamedTuple):
    """A tensor that the model received: its shape, and the tensor that it is, or is a view of.

    `row`: its first row there, and `begins` its first values; None if it is no slice of a larger one. `total`: its
    checksum; None if it was not asked for.
    """

    shape: tuple[int, ...]
    owner: ref[Tensor]
    row: int | None
    begins: Tensor | None
    total: Tensor | None


def taken(tensor: Tensor, *, summed: bool = True) -> Taken:
    """Waits for nothing."""
    total = checksum(tensor) if summed else None
    row = first_row(tensor)
    begins = None if row is None else first_values(tensor)
    return Taken(tuple(tensor.shape), ref(tree.base(tensor)), row, begins, total)


@dataclass
class Loaders:
    """The batches that DataLoaders have given for training."""

    firsts: int = 0
    others: int = 0
    in_order: bool = True
    """True if no DataLoader shuffles."""
    of: int = 0
    """The number of batches of the last one; 0 if unknown."""
    sampler: tuple[int, int] = (0, 0)
    """The numbers of weights and samples of a sampler that never draws most of the samples."""

    def take(self, iterator: object) -> None:
        number = batches_yielded(iterator)
        self.others += number > 1
        if number == 1:
            self.firsts += 1
            self.of = batches_in_all(iterator)
            self.in_order = self.in_order and takes_in_order(iterator) and self.of > 1
            weights, samples = sampler_weights(iterator)
            if not self.sampler[0] and _PART * weights <= samples:
                self.sampler = weights, samples

    @property
    def number(self) -> int:
        """The number of batches that were given."""
        return self.firsts + self.others

    @property
    def ordered(self) -> int:
        """The number of epochs that have begun, if none is shuffled; 0 if one is, or for the first."""
        return self.firsts if self.in_order and self.firsts > 1 and self.others else 0

    @property
    def whole(self) -> bool:
        """True if each batch is all of a DataLoader."""
        return self.firsts > _AFTER and self.of == 1

    @property
    def begin_anew(self) -> bool:
        """True if the program takes nothing but first batches, from a new iterator each."""
        return self.firsts > _AFTER and not self.others and self.of > 1


def words_on_sampler(weights: int, samples: int, classes: int) -> str:
    """Words on a WeightedRandomSampler of so many weights and samples; "" unless it has one for each class."""
    if not weights or weights != classes:
        return ""
    what = f"the WeightedRandomSampler has {weights:,} weights, and so draws only the first {weights:,} of {samples:,}"
    return f"{what} samples: give it a weight for each sample, such as class_weights[labels]"


@dataclass
class Batches:
    """Compares what the model received in each recorded step with the first."""

    loaders: Loaders
    same: int = 0
    """The number of recorded steps, if each received the same; 0 if one did not."""
    anew: bool = False
    rows: int = 0
    of: int = 0
    _first: Sequence[tuple[int, tuple[int, ...]]] = ()
    _owners: Sequence[ref[Tensor]] = field(default_factory=tuple)
    order: Order = field(default_factory=Order)
    differ: bool = False
    """True if one of them received another batch: then no more is to be known."""
    _searched: bool = False
    _index: ref[Tensor] | None = None
    """The index of the rows: if the program keeps it, it keeps the batch on purpose."""

    def search(self, batch: Tensor) -> None:
        """Search the program's tensors for the rows of a batch that seems to be the same again, while it is alive."""
        if self.same >= _AFTER and self.anew and not self._searched and batch.dim() > 1 and tree.is_plain(batch):
            self._searched = True
            alive = alive_tensors()
            self.rows, self.of = len(batch), rows_among(batch, alive)
            index = index_of(batch, alive) if self.of else None
            self._index = ref(index) if index is not None else None

    def take(self, x: Tensor, into: list[Taken]) -> None:
        """Take a tensor of a recorded step into those of the step, as far as more is to be known. Waits for nothing."""
        if into:
            self.order.give_up()
        if len(into) >= _TENSORS or x.is_complex() or (self.differ and into):
            return
        if not self.differ:
            self.search(x)
        into.append(taken(x, summed=not self.differ))

    def add(self, number: int, step: Sequence[Taken]) -> None:
        """Add the tensors of the recorded step of this number. Waits for an accelerator."""
        for one in step[:1]:
            if one.row is None or one.begins is None:
                self.order.give_up()
            else:
                self.order.note(number, one.owner, one.row, one.shape[0], one.begins)
        if self.differ or not step:
            return
        now = [(int(one.total), one.shape) for one in step if one.total is not None]
        if self.same and now != self._first:
            self.differ, self.same = True, 0
            return
        owners = [one.owner for one in step]
        if self.same:
            pairs = zip(self._owners, owners, strict=True)
            self.anew = any(before() is None or before() is not after() for before, after in pairs)
        self._first, self._owners = now, owners
        self.same += 1

    def fields(self) -> dict[str, Any]:
        """The fields of a line."""
        anew = self.anew and not self.loaders.whole
        known: dict[str, Any] = {"ordered": self.loaders.ordered if self.loaders.firsts else self.order.epochs()}
        known |= {"batches": self.same, "anew": anew} if self.same else {}
        if self.same and self.loaders.begin_anew:
            return known | {"source": LOADER, "of": self.loaders.of}
        is_index_kept = self._index is not None and self._index() is not None
        is_drawn = self.same and self.of and not is_index_kept
        return known | ({"source": ROWS, "of": self.of, "rows": self.rows} if is_drawn else {})


def alive_tensors() -> list[Tensor]:
    """The tensors that Python holds; not those that only a graph or another tensor does."""
    return [one for one in gc.get_objects() if type(one) is Tensor]


def rows_among(batch: Tensor, tensors: Sequence[Tensor]) -> int:
    """The number of rows of a tensor that has the batch's rows, and at least as many others.

    0 if there is none, or if a tensor holds just this batch: the program then keeps it on purpose.
    """
    rows = batch.detach().flatten(1)
    step = max(rows.shape[1] // _COLUMNS, 1)
    largest = 0
    for other in tensors:
        if not has_such_rows(other, batch) or other.data_ptr() == batch.data_ptr() or len(other) < len(batch):
            continue
        wanted, all_rows = rows.to(other.device), other.detach().flatten(1)
        if len(other) == len(batch):
            if torch.equal(wanted, all_rows):
                return 0
        elif len(other) >= _PART * len(batch) and all(
            has_row(all_rows, wanted[number], step) for number in {0, len(batch) // 2, len(batch) - 1}
        ):
            largest = max(largest, len(other))
    return largest


def has_such_rows(tensor: Tensor, batch: Tensor) -> bool:
    """True if the rows of a contiguous tensor are of the batch's shape and dtype."""
    alike = tree.is_plain(tensor) and tensor.dtype == batch.dtype and tensor.shape[1:] == batch.shape[1:]
    return alike and tensor.is_contiguous()


def index_of(batch: Tensor, tensors: Sequence[Tensor]) -> Tensor | None:
    """The index or the mask that picks the rows of the batch from a tensor; None if there is none."""
    flat = (one for one in tensors if tree.is_plain(one) and one.dim() == 1)
    indices = [one for one in flat if one.dtype == torch.bool or (one.dtype == torch.int64 and len(one) == len(batch))]
    for other in tensors:
        for index in indices if has_such_rows(other, batch) and other is not batch else ():
            if torch.equal(picked(other, index), batch.detach().to(other.device)):
                return index
    return None


def picked(tensor: Tensor, index: Tensor) -> Tensor:
    """The rows of a tensor that an index or a mask picks; none if it does not fit."""
    fits = len(index) == len(tensor) if index.dtype == torch.bool else is_among(index, len(tensor))
    return tensor.detach()[index.to(tensor.device)] if fits else tensor.detach()[:0]


def is_among(index: Tensor, number: int) -> bool:
    """True if an index picks some of so many rows."""
    return 0 < len(index) < number and int(index.min()) >= 0 and int(index.max()) < number


def has_row(rows: Tensor, row: Tensor, step: int) -> bool:
    """True if one of the rows is this row; a first look compares every step-th value."""
    near = (rows[:, ::step] == row[::step]).all(1).nonzero()[:_CANDIDATES, 0]
    return bool((rows[near] == row).all(1).any())
