"""The columns of a trace, apart from the probe, so that help can list them without importing torch."""

from hookcli.table.columns import columns_named

COLUMNS = columns_named(
    *("index", "us", "kind", "fqn", "type", "call", "pass", "path", "name", "shape", "dtype", "bytes", "kept"),
    fqn="Where",
    name="What",
)
