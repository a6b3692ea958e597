"""`MeasuredRows`: the rows of a report as an array, for reports of many ranks; and such a report as bytes."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from hookcli.system.files import unzipped
from hookcli.table.histogram import Histogram
from hookcli.table.report import Report
from hookcli.table.row import Row
from hookcli.table.stats import STATS_KEYS, TensorStats

if TYPE_CHECKING:  # numpy starts slower than commands that have no use for it
    import numpy as np
    from numpy.typing import NDArray

_SIZES = struct.Struct("=qqqq")  # bytes of the run's description, the rows' values, histograms and statistics


class MeasuredRows(Sequence[Row]):
    """Rows with statistics, held as an array of float64 (row, statistic): a small part of the memory of `Row`s.

    `values` are the other values of each row; reports of several ranks may share one sequence. `hists` are the
    histograms of the rows; empty without any.
    """

    def __init__(
        self, values: Sequence[Mapping[str, Any]], figures: NDArray[np.float64], hists: Sequence[Histogram | None] = ()
    ) -> None:
        self.values = values
        self.figures = figures
        self.hists = hists

    @classmethod
    def of(cls, rows: Sequence[Row]) -> MeasuredRows:
        """The rows as an array; each must have statistics."""
        import numpy as np

        if isinstance(rows, MeasuredRows):
            return rows
        stats = [row.stats for row in rows if row.stats]
        figures = np.array([each.floats() for each in stats], np.float64).reshape(-1, len(STATS_KEYS))
        hists = [each.hist for each in stats]
        return cls([row.values for row in rows], figures, hists if any(hists) else ())

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return MeasuredRows(self.values[index], self.figures[index], self.hists[index])
        stats = TensorStats.from_floats(self.figures[index].tolist())
        return Row(self.values[index], replace(stats, hist=self.hists[index]) if self.hists else stats)

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))


Places = tuple[Sequence[Mapping[str, Any]], Sequence[bool]]
"""For each row its values besides statistics, and whether it has statistics."""


def pack(report: Report) -> bytes:
    """The report as bytes: JSON for the run, compressed JSON for the rows' values, and float64 for the statistics."""
    run = json.dumps(replace(report, rows=()).to_dict()).encode()
    places = [dict(row.values) for row in report.rows], [row.stats is not None for row in report.rows]
    text = zlib.compress(json.dumps(places, separators=(",", ":")).encode(), level=1)
    measured = MeasuredRows.of([row for row in report.rows if row.stats])
    hists = json.dumps([hist and hist.to_dict() for hist in measured.hists]).encode()
    parts = run, text, zlib.compress(hists, level=1), measured.figures.tobytes()
    return _SIZES.pack(*map(len, parts)) + b"".join(parts)


def unpack(packed: bytes | memoryview, known: dict[bytes, Places]) -> Report:
    """The inverse of `pack`; bytes after the report are ignored. `known` caches the rows' values by their bytes.

    If all rows have statistics, they are MeasuredRows, and their figures stay where they are in `packed`.
    """
    import numpy as np

    sizes = _SIZES.unpack_from(packed)
    start = _SIZES.size
    run, text, counts, numbers = (packed[start + sum(sizes[:i]) : start + sum(sizes[: i + 1])] for i in range(4))
    if (text := bytes(text)) not in known:
        known[text] = json.loads(unzipped(text))
    figures = np.frombuffer(numbers, np.float64).reshape(-1, len(STATS_KEYS))
    values, measured = known[text]
    hists = [each and Histogram.from_dict(each) for each in json.loads(unzipped(counts))]
    rows: Sequence[Row] = MeasuredRows(values, figures, hists)  # whose values may come from other ranks, too
    if not all(measured):
        rows = MeasuredRows([each for each, has in zip(values, measured, strict=True) if has], figures, hists)
        measured_rows = iter(rows)
        rows = [next(measured_rows) if has else Row(each) for each, has in zip(values, measured, strict=True)]
    return replace(Report.from_dict(json.loads(bytes(run))), rows=rows)
