"""Reads reports of many ranks from packed lines straight into arrays, without an object for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hookcli.record.file.packing import Layout, unpack_columns, unpack_layout
from hookcli.table import STATS_KEYS, Report
from hookcli.table.files import sound
from hookcli.table.measured_rows import MeasuredRows
from hookcli.table.stats import COUNTS

if TYPE_CHECKING:  # numpy starts slower than commands that have no use for it
    import numpy as np
    from numpy.typing import NDArray

_Columns = Mapping[str, Sequence[Any]]


class Unpacked(NamedTuple):
    """A report of a packed line; where all of its rows have statistics, also the rows' values, and the statistics."""

    head: Report
    values: Sequence[Mapping[str, Any]] = ()
    figures: NDArray[np.float64] | None = None

    def report(self) -> Report:
        """The report, whose rows are MeasuredRows where all have statistics."""
        return self.head if self.figures is None else replace(self.head, rows=MeasuredRows(self.values, self.figures))


@dataclass
class SharedRows:
    """The layouts of several ranks, by their text, and the values of rows besides statistics, by probe."""

    _layouts: dict[str, Layout] = field(default_factory=dict)
    _values: dict[str, tuple[_Columns, Sequence[Mapping[str, Any]]]] = field(default_factory=dict)

    def layout(self, text: str) -> Layout:
        """The layout of a line. Raises as `unpack_layout` does."""
        if text not in self._layouts:
            self._layouts[text] = unpack_layout(text)
        return self._layouts[text]

    def unpack(self, text: str, layout: Callable[[int], Layout]) -> Iterator[Unpacked]:
        """The reports of a packed line, checked. Raises as `unpack` does."""
        for own, head, columns in unpack_columns(text, layout):
            measured = bool(own.kinds) and all(set(STATS_KEYS) <= set(keys) and "hist" not in keys for keys in own.keys)
            rest = {key: column for key, column in columns.items() if not measured or key not in STATS_KEYS}
            known = self._values.get(head["probe"]) if measured else None
            if known is not None and known[0] == rest:
                yield Unpacked(sound(Report.from_dict({**head, "rows": []})), known[1], _figures(columns, known[1]))
                continue
            report = sound(Report.from_dict({**head, "rows": own.rows(columns)}))
            if not measured:
                yield Unpacked(report)
                continue
            values = [row.values for row in report.rows]
            self._values.setdefault(report.probe, (rest, values))
            yield Unpacked(report, values, _figures(columns, values))


def _figures(columns: _Columns, rows: Sequence[Any]) -> NDArray[np.float64]:
    """The statistics of these rows. Raises ValueError, KeyError or TypeError if some are missing, or no numbers."""
    import numpy as np

    found = np.array([columns[key] for key in STATS_KEYS], np.float64).T
    if found.shape != (len(rows), len(STATS_KEYS)) or not np.all(found[:, _COUNTS] >= 0):
        raise ValueError("statistics are missing")
    return found


_COUNTS = [STATS_KEYS.index(key) for key in COUNTS]
