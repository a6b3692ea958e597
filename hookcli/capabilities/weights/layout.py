"""The columns of tensors at rest, apart from what measures them: help lists them without importing torch."""

from hookcli.table.columns import columns_named
from hookcli.table.columns.layouts import leaving
from hookcli.table.columns.statistics import HIST_COLUMNS, STATS_COLUMNS

SPECTRAL = columns_named("spectral_norm", "stable_rank")
WEIGHTS = leaving(
    (
        *columns_named("fqn", "kind", "type", "file", "shape", "dtype", "bytes", fqn="Name"),
        *STATS_COLUMNS,
        *HIST_COLUMNS,
        *SPECTRAL,
    ),
    (
        *("numel", "type", "p1", "p50", "p99", "outside_bfloat16", "outside_float8_e5m2", "l2", "min", "mean", "file"),
        *("outside_float8_e4m3", "max", "zeros", "outside_float16", "std", "dtype"),
    ),
)
"""Tensors at rest: of a file, or the parameters and buffers of a model. A file's shapes and bytes stay longest."""
