"""The columns of attention's report, apart from the probe, so that help can list them without importing torch."""

from hookcli.table.columns import OF_CAPABILITIES, columns_named

COLUMNS = (*columns_named("fqn", "type", "call", "index"), *OF_CAPABILITIES["attention"])
"""Heads of attention."""
