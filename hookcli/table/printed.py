"""A report's table for `print`, the prompt and notebooks, and its rows as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookcli import registry


class PrintedTable:
    """The table of a report: `str` and `repr` are its text, as wide as the terminal; notebooks show it as a page.

    Raises UsageError for a column that the report lacks, and for a depth that is none.
    """

    def __init__(self, report: Any, **view: Any) -> None:
        self._reporter = registry.load("reporters", "table")()
        self._report, self._view = self._reporter.asked(report, **view)

    def __str__(self) -> str:
        """The text: as wide as the terminal, or as it needs where stdout is none; without colour codes."""
        return str(self._reporter.printed(self._report, self._view))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table as a page in a frame, which notebooks show."""
        return str(registry.load("reporters", "html")().frame([self._report], self._view))


_NULLABLE = {bool: "boolean", int: "Int64"}


def data_frame(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> Any:
    """Return a DataFrame of the rows: the declared columns first, then the others that rows have.

    Raises ImportError, with the command that installs pandas, if it can't be imported.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("Report.to_pandas() needs pandas: pip install pandas") from error
    names = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    return pd.DataFrame({name: _column(pd, [row.get(name) for row in rows]) for name in names})


def _column(pd: Any, values: Sequence[Any]) -> Any:
    """Return a column: of integers or flags only where all are, with a nullable dtype where some are missing."""
    kinds = {type(value) for value in values if value is not None}
    dtype = None
    if len(kinds) == 1 and (kind := next(iter(kinds))) in _NULLABLE:
        dtype = _NULLABLE[kind] if None in values else kind
    elif kinds and kinds <= {int, float}:
        dtype = float
    elif kinds & {list, tuple, dict}:
        dtype = object
    return pd.Series([_hashable(value) for value in values], dtype=dtype)


def _hashable(value: Any) -> Any:
    """Return lists as tuples, so that rows can be grouped by a shape."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return value
