"""The columns of a report on communication hooks, apart from what measures them, which imports torch."""

from hookcli.table.columns import columns_named
from hookcli.table.columns.statistics import BEFORE_COLUMNS, STATS_COLUMNS

BUCKET = columns_named("hook", "step", "bucket", "order", "params", "fqns", "elements", "bytes_before")
"""Columns that tell which bucket a row is of, on any rank."""
ERRORS = columns_named("exact_l2", "error_l2", "after_l2")
"""Norms of the exact mean over ranks, of a hook's error, and of its result."""
COLUMNS = (
    *BUCKET,
    *columns_named("bytes_after", "ratio", "seconds", ratio="Ratio"),
    *BEFORE_COLUMNS,
    *STATS_COLUMNS,
    *ERRORS,
    *columns_named("relative_l2", "error_max", "cosine"),
)
"""Buckets of gradients before and after a communication hook."""
