"""Reports as tables of columns: plain numbers, no tensors, no torch."""

from hookcli.table.report import (
    HIST_COLUMNS,
    INFO,
    SCHEMA,
    SEVERITIES,
    STATS_COLUMNS,
    Column,
    Finding,
    Reason,
    Report,
    Skipped,
    columns_named,
    document,
)
from hookcli.table.row import Row
from hookcli.table.stats import STATS_KEYS, TensorStats, agree, raised
from hookcli.table.strict_json import relaxed, strict

__all__ = [
    "HIST_COLUMNS",
    "INFO",
    "SCHEMA",
    "SEVERITIES",
    "STATS_COLUMNS",
    "STATS_KEYS",
    "Column",
    "Finding",
    "Reason",
    "Report",
    "Row",
    "Skipped",
    "TensorStats",
    "agree",
    "columns_named",
    "document",
    "raised",
    "relaxed",
    "strict",
]
