"""Reports: plain numbers, no tensors, no torch."""

from hookcli.report.report import (
    INFO,
    SCHEMA,
    SEVERITIES,
    STATS_COLUMNS,
    STATS_KEYS,
    Column,
    Finding,
    Report,
    Row,
    Skipped,
    TensorStats,
    document,
    raised,
    relaxed,
    strict,
)

__all__ = [
    "INFO",
    "SCHEMA",
    "SEVERITIES",
    "STATS_COLUMNS",
    "STATS_KEYS",
    "Column",
    "Finding",
    "Report",
    "Row",
    "Skipped",
    "TensorStats",
    "document",
    "raised",
    "relaxed",
    "strict",
]
