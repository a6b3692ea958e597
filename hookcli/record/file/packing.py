"""Packs the reports of recorded steps: names, types and titles once per record, and each figure in a few bytes.

A *layout* is a report without its floats, on a separate line before the first step that refers to it by number. A
packed step is one compressed text: JSON that says what differs from the layouts, then the floats, column by column.
"""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from hookcli.system.files import unzipped
from hookcli.table import STATS_KEYS, Report, strict
from hookcli.table.files import sound
from hookcli.table.measured_rows import MeasuredRows
from hookcli.table.stats import COUNTS

if TYPE_CHECKING:  # numpy starts slower than commands that have no use for it
    import numpy as np
    from numpy.typing import NDArray

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_ENTRIES, _ROWS = 32, 2**17  # kept in any case (a model of many parts needs a layout for each), and rows beyond these


class Recent(Generic[K, V]):
    """The values that were used last: 32 of them, and more as long as all have no more than 2**17 rows.

    A model that takes another path in each step defines many layouts.
    """

    def __init__(self) -> None:
        self._held: dict[K, tuple[V, int]] = {}
        self._rows = 0

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as used; None if it is not held."""
        if key not in self._held:
            return None
        self._held[key] = self._held.pop(key)
        return self._held[key][0]

    def add(self, key: K, value: V, rows: int) -> V:
        """Hold a value of so many rows under a new key, and return it; the values used least recently make room."""
        self._held[key] = value, rows
        self._rows += rows
        while len(self._held) > _ENTRIES and self._rows > _ROWS:
            self._rows -= self._held.pop(next(iter(self._held)))[1]
        return value


_LARGEST = 2**28  # bytes of an unpacked text; nor must a file made to do so
_DIGITS, _EXACT = 5, 8  # bytes of a float with 29 significant bits (9 digits), and of a whole one
_DOUBLE = ("float64", "complex128")
_STATS = {*STATS_KEYS}
_Columns = Mapping[str, Sequence[Any]]


class Layout(NamedTuple):
    """A report without its floats.

    `head` holds the fields of the report in JSON, except its rows. Row i has the keys `keys[kinds[i]]` in this order;
    `cells` holds the values under keys that have no floats, in the order of the rows.
    """

    head: Mapping[str, object]
    keys: Sequence[Sequence[str]]
    kinds: Sequence[int]
    cells: _Columns

    @classmethod
    def of(cls, head: Mapping[str, object], rows: Sequence[Mapping[str, object]], columns: _Columns) -> Self:
        """The layout of a report with these rows and the columns made of them."""
        number = {keys: i for i, keys in enumerate(dict.fromkeys(map(tuple, rows)))}
        cells = {key: column for key, column in columns.items() if not _floats(column)}
        return cls(head, list(number), [number[tuple(row)] for row in rows], cells)

    def rows(self, columns: _Columns) -> list[dict[str, object]]:
        """The rows of these columns. Raises KeyError or ValueError if they lack values."""
        left = {key: iter(column) for key, column in columns.items()}
        try:
            return [{key: next(left[key]) for key in self.keys[kind]} for kind in self.kinds]
        except StopIteration:
            raise ValueError("a column is too short") from None

    def measured(self) -> bool:
        """True if all rows have statistics, and none a histogram."""
        return bool(self.kinds) and all({*keys} >= _STATS and "hist" not in keys for keys in self.keys)


class Packer:
    """Packs the steps of one record; knows layouts that its lines have defined, by number."""

    def __init__(self) -> None:
        self._layouts: Recent[Any, tuple[int, Layout]] = Recent()
        self._defined = 0

    def pack(self, reports: Iterable[Report]) -> tuple[dict[int, str], str]:
        """The new layouts by number, and the reports, each as text for a line of the record."""
        new: dict[int, str] = {}
        texts, floats = [], []
        for report in reports:
            head = report.to_dict()
            rows = head.pop("rows")
            columns: dict[str, list[Any]] = {}
            for row in rows:
                for name, value in row.items():
                    columns.setdefault(name, []).append(value)
            key = (head["probe"], head["model"], *((row.get("fqn"), *row) for row in rows))
            known = self._layouts.get(key)
            if known is None:
                self._defined += 1
                known = self._layouts.add(key, (self._defined, Layout.of(head, rows, columns)), len(rows))
                new[self._defined] = _packed(strict(known[1]._asdict()))
            differences, numbers = _differences(head, columns, known[1])
            texts.append({"layout": known[0]} | differences)
            floats.append(numbers)
        return new, _packed(texts, b"".join(floats))

    def forget(self) -> None:
        """Forget all layouts, since a line that defines one may not have been written."""
        self._layouts = Recent()


def unpack(text: str, layout: Callable[[int], Layout]) -> list[dict[str, Any]]:
    """The reports in JSON that `Packer.pack` made a text of; `layout` finds one by its number.

    Raises ValueError, KeyError, TypeError or AttributeError for a damaged text.
    """
    return [head | {"rows": own.rows(columns)} for own, head, columns in _unpacked_columns(text, layout)]


@dataclass
class SharedRows:
    """Unpacks the steps of several ranks, with what these share once: layouts by their text, and by probe the columns
    of values besides statistics, with the rows made of them.
    """

    _layouts: dict[str, Layout] = field(default_factory=dict)
    _values: dict[str, tuple[_Columns, Sequence[Mapping[str, object]]]] = field(default_factory=dict)

    def layout(self, text: str) -> Layout:
        """The layout of a line. Raises as `unpack_layout` does."""
        if text not in self._layouts:
            self._layouts[text] = unpack_layout(text)
        return self._layouts[text]

    def unpack(self, text: str, layout: Callable[[int], Layout]) -> Iterator[Report]:
        """The reports of a text, checked; MeasuredRows, made without an object for each row, where all have statistics.

        Raises as `unpack` does.
        """
        for own, head, columns in _unpacked_columns(text, layout):
            if not own.measured():
                yield sound(Report.from_dict({**head, "rows": own.rows(columns)}))
                continue
            rest = {key: column for key, column in columns.items() if key not in _STATS}
            shared = self._values.get(head["probe"])
            same = shared is not None and shared[0] == rest
            report = sound(Report.from_dict({**head, "rows": [] if same else own.rows(columns)}))
            values = shared[1] if shared and same else [row.values for row in report.rows]
            self._values.setdefault(report.probe, (rest, values))
            yield replace(report, rows=MeasuredRows(values, _figures(columns, len(values))))


def _figures(columns: _Columns, rows: int) -> NDArray[np.float64]:
    """The statistics of so many rows. Raises ValueError, KeyError or TypeError if some are missing, or no numbers."""
    import numpy as np

    figures = np.array([columns[key] for key in STATS_KEYS], np.float64).T
    if figures.shape != (rows, len(STATS_KEYS)) or not np.all(figures[:, [key in COUNTS for key in STATS_KEYS]] >= 0):
        raise ValueError("statistics are missing")
    return figures


def _unpacked_columns(
    text: str, layout: Callable[[int], Layout]
) -> Iterator[tuple[Layout, dict[str, Any], dict[str, Sequence[object]]]]:
    """The layout of each report, its fields without the rows, and the columns of these. Raises as `unpack` does."""
    texts, floats = _unpacked(text)
    for one in texts:
        own = layout(one["layout"])
        columns = dict(own.cells) | one["cells"]
        width = _EXACT if one["exact"] else _DIGITS
        for key in one["floats"]:
            count = sum(own.kinds.count(kind) for kind, keys in enumerate(own.keys) if key in keys)
            raw = bytearray(8 * count)
            for i in range(width):
                raw[8 - width + i :: 8] = floats[i * count : (i + 1) * count]
            columns[key], floats = struct.unpack(f"<{count}d", raw), floats[width * count :]
        yield own, {**own.head, **one["head"]}, columns


def unpack_layout(text: str) -> Layout:
    """The layout of a line. Raises ValueError, KeyError or TypeError for a damaged text."""
    return Layout(**_unpacked(text)[0])


def _floats(column: Iterable[Any]) -> bool:
    return all(type(value) is float for value in column)


def _differences(head: Mapping[str, object], columns: _Columns, layout: Layout) -> tuple[dict[str, object], bytes]:
    """The fields and cells that differ from a layout's, and the floats."""
    floats = [key for key, column in columns.items() if _floats(column)]
    exact = "lr" in columns or any(dtype in _DOUBLE for dtype in columns.get("dtype", ()))  # settings are read as typed
    cells = {key: column for key, column in columns.items() if key not in floats and column != layout.cells.get(key)}
    fields = {key: value for key, value in head.items() if value != layout.head.get(key)}
    differences = {"floats": floats, "exact": exact, "cells": strict(cells), "head": strict(fields)}
    # Of each column the upper bytes: all the lowest, then all the next ones. Those alike thus compress together.
    planes = []
    for column in (columns[key] for key in floats):
        raw = struct.pack(f"<{len(column)}d", *(column if exact else map(_rounded, column)))
        planes += [raw[i::8] for i in range(0 if exact else 8 - _DIGITS, 8)]
    return differences, b"".join(planes)


def _rounded(x: float) -> float:
    """A float with 29 significant bits, by Veltkamp's splitting; one so large that this would overflow stays."""
    if not abs(x) < 1e300:
        return x
    large = x * 16777217.0  # 2**24 + 1
    return large - (large - x)


def _packed(data: object, floats: bytes = b"") -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")
    return b64encode(zlib.compress(text + b"\n" + floats)).decode("ascii")


def _unpacked(text: str) -> tuple[Any, bytes]:
    """The JSON of a text and the floats after it. Raises ValueError for a damaged text."""
    data, _, floats = unzipped(b64decode(text, validate=True), _LARGEST).partition(b"\n")
    return json.loads(data), floats
