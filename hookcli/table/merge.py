"""Merges rows of one place into one, by the rules of their columns. Exact, and free of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hookcli.table.column import Column, Merge
from hookcli.table.columns import DECLARED, place_of
from hookcli.table.columns.training import OF_PARAMETERS
from hookcli.table.formatting import listed
from hookcli.table.row import Row
from hookcli.table.stats import STATS_KEYS, TensorStats, norm, ratio

_SHAPES = 16  # shapes of one place that are kept


def merged_values(rows: Sequence[Row], columns: Iterable[Column]) -> dict[str, Any]:
    """The values of two or more rows as one row's. A value is None where no row has one, or its rule gives none."""
    values = {
        name: value if all(row.get(name) == value for row in rows) else None for name, value in rows[0].values.items()
    }
    present = {name for row in rows for name in row.values}
    chosen = [column for column in columns if column.name in present and column.merge != Merge.SAME]
    for column in chosen:
        values |= _by_rule(rows, column, present)
    update, weight = values.get("update"), values.get("weight")
    return values | {column.name: ratio(update, weight) for column in chosen if column.merge == Merge.RATIO}


def _by_rule(rows: Sequence[Row], column: Column, present: set[str]) -> dict[str, Any]:
    """The merged value of one of the columns that are `present`; nothing where the value that all rows share stays.

    A norm is merged over rows of one module alone; rows of several modules have none in common.
    """
    name = column.name
    if (other := column.lowest_of) in present:
        known = (row for row in rows if row.get(other) is not None)
        return {name: min(known, key=lambda row: float(row[other]), default=rows[0]).get(name)}
    match column.merge:
        case Merge.FIRST:
            return {name: rows[0].get(name)}
        case Merge.WORST if "times" in present:
            return {name: max(rows, key=lambda row: (bool(row.get("beyond")), row.get("times") or 0.0)).get(name)}
        case Merge.LISTED:
            return _listed(name, rows)
        case Merge.NORM if any(row.fqn != rows[0].fqn for row in rows):
            return {}
        case Merge.RATIO | Merge.WORST:
            return {}
    return {name: _combined(rows, column)}


def gathered(rows: Iterable[Row], columns: Iterable[Column] = OF_PARAMETERS) -> dict[str, Any]:
    """The norms over all parameters of the rows, their `ratio`, and counts of non-finite elements; None without any."""
    rows = list(rows)
    values = {column.name: _combined(rows, column) for column in columns}
    return values | {"ratio": ratio(values["update"], values["weight"])}


def _combined(rows: Sequence[Row], column: Column) -> Any:
    """The rows' values under this column as one, by a rule for numbers; None if no row has a number.

    Of a module that was called several times the first call counts, if the rule counts it once.
    """
    if column.merge == Merge.ONCE:
        rows = [*{origin(row): row for row in reversed(rows) if row.get(column.name) is not None}.values()]
    parts = [value for row in rows if isinstance(value := row.get(column.name), (int, float))]
    return _RULES[column.merge](parts) if parts else None


_RULES: Mapping[Merge, Callable[[Sequence[Any]], Any]] = {
    Merge.SUM: sum,
    Merge.ONCE: sum,
    Merge.LEAST: lambda parts: min(_known(parts)),
    Merge.MOST: lambda parts: max(_known(parts)),
    Merge.NORM: norm,
}


def _known(parts: Sequence[float]) -> Sequence[float]:
    """The parts without NaN, unless there are no others."""
    return [part for part in parts if part == part] or parts


def _listed(name: str, rows: Sequence[Row]) -> dict[str, str]:
    """The first text with the number of rows that have it, unless all do, and how many other texts there are."""
    counts = Counter(str(row[name]) for row in rows if row.get(name))
    texts = [text if number == len(rows) else f"{text} ({number} of {len(rows)})" for text, number in counts.items()]
    return {name: listed(texts, 1)} if texts else {}


def rules_of(columns: Iterable[Column]) -> list[Column]:
    """The columns, besides statistics, whose rule combines values, and a plugin's columns, whatever their rule.

    Texts are not listed batch by batch: a text is kept if all batches share it.
    """
    kept = (Merge.SAME, Merge.FIRST)
    chosen = [c for c in columns if c.name not in STATS_KEYS and (c.merge not in kept or c.name not in DECLARED)]
    return [replace(c, merge=Merge.SAME) if c.merge == Merge.LISTED else c for c in chosen]


def ruled(rows: Sequence[Row], rules: Sequence[Column]) -> dict[str, Any]:
    """The merged values under these rules alone."""
    merged = merged_values(rows, rules)
    return {column.name: merged[column.name] for column in rules if column.name in merged}


def origin(row: Row) -> str:
    """The name that a row had before its block was folded."""
    return str(row.get("origin", row.fqn))


class BatchRows:
    """Rows of several batches by their place: the statistics are taken over the batches' tensors, concatenated."""

    def __init__(self, columns: Iterable[Column] = ()) -> None:
        self._rules = rules_of(columns)
        self._places: dict[Hashable, _BatchesOfPlace] = {}
        self._batches = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, rows: Iterable[Row]) -> None:
        """Take in the rows of a batch."""
        self._batches += 1
        for row in rows:
            key = place_of(row.values)
            if key in self._places:
                self._places[key].add(row, self._rules)
            else:
                self._places[key] = _BatchesOfPlace(row, row.stats, list(row["shape"]))
            if row.stats and (row.stats.nan or row.stats.inf):
                self._places[key].bad = self._places[key].bad or self._batches

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
class _BatchesOfPlace:
    """The rows of one place, merged: the first of them, and the shape of all tensors together, None if none fits."""

    first: Row
    stats: TensorStats | None
    shape: list[int] | None
    batches: int = 1
    shapes: dict[tuple[int, ...], None] = field(default_factory=dict)
    bad: int = 0

    def add(self, row: Row, rules: Sequence[Column]) -> None:
        self.batches += 1
        if rules:
            self.first = Row({**self.first.values, **ruled([self.first, row], rules)}, self.first.stats)
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
            shapes = {tuple(self.first["shape"]): None} | self.shapes
            values["shapes"] = [list(shape) for shape in shapes]
        return Row(values, self.stats)
