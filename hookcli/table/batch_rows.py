"""Merges the rows of one batch after the other, exactly and in constant memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookcli.table import Row, TensorStats
from hookcli.table.columns import place_of

_SHAPES = 16  # shapes of one place that are kept


class BatchRows:
    """Rows of several batches by their place: the statistics are those of the batches' tensors, concatenated."""

    def __init__(self) -> None:
        self._places: dict[Hashable, _Place] = {}
        self._batches = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, rows: Iterable[Row]) -> None:
        """Take in the rows of a batch."""
        self._batches += 1
        for row in rows:
            key = place_of(row.values)
            if key in self._places:
                self._places[key].add(row)
            else:
                self._places[key] = _Place(row, row.stats, list(row["shape"]))
            self._places[key].note_bad(row, self._batches)

    def rows(self) -> list[Row]:
        """A row for each place.

        It has `batches`, the number of batches that had it, and `bad_batch`, the first of these with NaN or infinities.
        """
        return [place.row() for place in self._places.values()]


def concatenated(one: Sequence[int] | None, other: Sequence[int] | None) -> list[int] | None:
    """The shape of two tensors concatenated along dimension 0; None if they don't fit, or if a shape is None.

    Single numbers, such as a loss that a module returns, stay what they are.
    """
    if one is None or other is None or list(one[1:]) != list(other[1:]) or bool(one) != bool(other):
        return None
    return [one[0] + other[0], *one[1:]] if one else []


@dataclass(slots=True)
class _Place:
    """The rows of one place, merged: the first of them, and the shape of all tensors together, None if none fits."""

    first: Row
    stats: TensorStats | None
    shape: list[int] | None
    batches: int = 1
    shapes: dict[tuple[int, ...], None] = field(default_factory=dict)
    bad: int = 0

    def note_bad(self, row: Row, batch: int) -> None:
        if not self.bad and row.stats and (row.stats.nan or row.stats.inf):
            self.bad = batch

    def add(self, row: Row) -> None:
        self.batches += 1
        self.stats = TensorStats.merge([one for one in (self.stats, row.stats) if one])
        shape: Sequence[int] = row["shape"]
        if len(self.shapes) < _SHAPES:
            self.shapes[tuple(shape)] = None
        if self.first.get("kind") != "parameter":
            self.shape = concatenated(self.shape, shape)

    def row(self) -> Row:
        values: dict[str, Any] = {**self.first.values, "shape": self.shape, "batches": self.batches}
        values |= {"bad_batch": self.bad} if self.bad else {}
        if self.shape is None:
            found = {tuple(self.first["shape"]): None} | self.shapes
            values["shapes"] = [list(shape) for shape in found]
        return Row(values, self.stats)
