"""The columns of the report of a graph, apart from the probe, so that help can list them without importing torch."""

from hookcli.table.columns import columns_named
from hookcli.table.columns.statistics import OUT_COLUMNS, STATS_COLUMNS

COLUMNS = (
    *columns_named("order", "node", "fqn", "call", "pass", "fired", "in_shape", "out_shape", "dtype", fqn="Made by"),
    *STATS_COLUMNS,
    *OUT_COLUMNS,
    *columns_named("us", "id", "next"),
)
