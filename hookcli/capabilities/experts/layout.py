"""The columns of the experts' report, apart from the probe, so that help can list them without importing torch."""

from hookcli.table.columns import OF_CAPABILITIES, columns_named

COLUMNS = (*columns_named("fqn", "type"), *OF_CAPABILITIES["experts"])
"""Layers of a mixture of experts, each followed by its experts."""
