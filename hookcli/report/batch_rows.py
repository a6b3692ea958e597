"""Merges the rows of one batch after the other, exactly and in constant memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookcli.report import Row, TensorStats

_PLACE = ("fqn", "kind", "call", "pass", "path")
_SHAPES = 16  # shapes of one place that are kept


class BatchRows:
    """Rows of several batches by their place: the statistics are those of the batches' tensors, concatenated."""

    def __init__(self) -> None:
        self._places: dict[Hashable, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, rows: Iterable[Row]) -> None:
        """Take in the rows of a batch."""
        for row in rows:
            key = tuple(row.get(name) for name in _PLACE)
            if key in self._places:
                self._places[key].add(row)
            else:
                self._places[key] = _Place(row, row.stats, list(row["shape"]))

    def rows(self) -> list[Row]:
        """A row for each place, with `batches`, the number of batches that had it."""
        return [place.row() for place in self._places.values()]


@dataclass(slots=True)
class _Place:
    """The rows of one place, merged: the first of them, and the shape of all tensors together, None if none fits."""

    first: Row
    stats: TensorStats | None
    shape: list[int] | None
    batches: int = 1
    shapes: dict[tuple[int, ...], None] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.batches += 1
        self.stats = TensorStats.merge([one for one in (self.stats, row.stats) if one])
        shape: Sequence[int] = row["shape"]
        if len(self.shapes) < _SHAPES:
            self.shapes[tuple(shape)] = None
        if self.first.get("kind") == "parameter" or self.shape is None:
            return
        if list(shape[1:]) != self.shape[1:] or bool(shape) != bool(self.shape):
            self.shape = None
        elif shape:
            self.shape[0] += shape[0]

    def row(self) -> Row:
        values: dict[str, Any] = {**self.first.values, "shape": self.shape, "batches": self.batches}
        if self.shape is None:
            found = {tuple(self.first["shape"]): None} | self.shapes
            values["shapes"] = [list(shape) for shape in found]
        return Row(values, self.stats)
