"""Reports: plain numbers, no tensors, no torch.

The package can be called: `hookcli.report(model, inputs)` runs the model once, in its present mode, and returns a
`ReportPage` with everything that was measured: the findings of the checks, shapes, and statistics of activations,
gradients and parameters with their distributions. Notebooks show it as a page, and `save` writes it to a file. `loss`,
`name` and the settings are those of `hookcli.check`, and as there the model is afterwards as it was; a model that fails
is a finding. `hookcli report` does the same for a model that it builds itself.
"""

import sys

from hookcli.report.page import CallableModule, ReportPage
from hookcli.report.report import (
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
from hookcli.report.row import Row
from hookcli.report.stats import STATS_KEYS, TensorStats, agree, raised
from hookcli.report.strict_json import relaxed, strict

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
    "ReportPage",
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

sys.modules[__name__].__class__ = CallableModule
