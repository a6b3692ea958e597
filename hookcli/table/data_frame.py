"""Rows of a report as a pandas DataFrame. pandas is imported only for that, and is no dependency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
