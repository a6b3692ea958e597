"""The columns of the flow's report, apart from the probe, so that help can list them without importing torch."""

from hookcli.table.columns import columns_named
from hookcli.table.columns.layouts import leaving

COLUMNS = leaving(
    columns_named("id", "kind", "fqn", "type", "number", "call", "inputs", "input_shape", "output_shape", "dtype"),
    ("number", "call", "input_shape", "kind"),
)
