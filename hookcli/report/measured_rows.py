"""`MeasuredRows`: the rows of a report as an array, for reports of many ranks; and such a report as bytes."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from hookcli.report.report import Report, Row
from hookcli.report.stats import STATS_KEYS, TensorStats

if TYPE_CHECKING:  # numpy starts slower than commands that have no use for it
    import numpy as np
    from numpy.typing import NDArray

_SIZES = struct.Struct("=qqq")  # bytes of the run's description, of the rows' values and of the statistics


class MeasuredRows(Sequence[Row]):
    """Rows with statistics, held as an array of float64 (row, statistic): a small part of the memory of `Row`s.

    `values` are the other values of each row; reports of several ranks may share one sequence.
    """

    def __init__(self, values: Sequence[Mapping[str, Any]], figures: NDArray[np.float64]) -> None:
        self.values = values
        self.figures = figures

    @classmethod
    def of(cls, rows: Sequence[Row]) -> MeasuredRows:
        """The rows as an array; each must have statistics."""
        import numpy as np

        if isinstance(rows, MeasuredRows):
            return rows
        figures = [row.stats.floats() for row in rows if row.stats]
        return cls([row.values for row in rows], np.array(figures, np.float64).reshape(-1, len(STATS_KEYS)))

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return MeasuredRows(self.values[index], self.figures[index])
        return Row(self.values[index], TensorStats.from_floats(self.figures[index].tolist()))

    def __iter__(self) -> Iterator[Row]:
        for values, figures in zip(self.values, self.figures.tolist(), strict=True):
            yield Row(values, TensorStats.from_floats(figures))


Places = tuple[Sequence[Mapping[str, Any]], Sequence[bool]]
"""For each row its values besides statistics, and whether it has statistics."""


def pack(report: Report) -> bytes:
    """The report as bytes: JSON for the run, compressed JSON for the rows' values, and float64 for the statistics."""
    run = json.dumps(replace(report, rows=()).to_dict()).encode()
    places = [dict(row.values) for row in report.rows], [row.stats is not None for row in report.rows]
    text = zlib.compress(json.dumps(places, separators=(",", ":")).encode(), level=1)
    figures = MeasuredRows.of([row for row in report.rows if row.stats]).figures
    return _SIZES.pack(len(run), len(text), figures.nbytes) + run + text + figures.tobytes()


def unpack(packed: bytes | memoryview, known: dict[bytes, Places]) -> Report:
    """The inverse of `pack`; bytes after the report are ignored. `known` caches the rows' values by their bytes.

    If all rows have statistics, they are MeasuredRows, and their figures stay where they are in `packed`.
    """
    import numpy as np

    sizes = _SIZES.unpack_from(packed)
    start = _SIZES.size
    run, text, numbers = (packed[start + sum(sizes[:i]) : start + sum(sizes[: i + 1])] for i in range(3))
    if (text := bytes(text)) not in known:
        known[text] = json.loads(zlib.decompress(text))
    figures = np.frombuffer(numbers, np.float64).reshape(-1, len(STATS_KEYS))
    values, measured = known[text]
    rows: Sequence[Row] = MeasuredRows(values, figures)
    if not all(measured):
        stats = (TensorStats.from_floats(floats) for floats in figures.tolist())
        rows = [Row(each, next(stats) if has else None) for each, has in zip(values, measured, strict=True)]
    return replace(Report.from_dict(json.loads(bytes(run))), rows=rows)
