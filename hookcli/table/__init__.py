"""Reports as tables of columns: plain numbers, no tensors, no torch."""

from hookcli.table.column import Bar, Column, Kind, Merge, Shown
from hookcli.table.columns import columns_named
from hookcli.table.columns.statistics import HIST_COLUMNS, STATS_COLUMNS
from hookcli.table.report import INFO, SCHEMA, SEVERITIES, Finding, Reason, Report, Skipped, document
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
    "Bar",
    "Column",
    "Finding",
    "Kind",
    "Merge",
    "Reason",
    "Report",
    "Row",
    "Shown",
    "Skipped",
    "TensorStats",
    "agree",
    "columns_named",
    "document",
    "raised",
    "relaxed",
    "strict",
]
