"""The columns of the reports of a coordinate check, apart from what measures them: help lists them without torch."""

from hookcli.table.columns import columns_named

COLUMNS = columns_named(
    *("fqn", "type", "size_narrowest", "size_widest", "initial_slope", "initial_slope_error"),
    *("size_slope", "size_slope_error", "change_slope", "change_slope_error", "with_width", "index"),
)
"""A row for each module, with the slopes of the last step."""
POINTS = columns_named("fqn", "type", "width", "seed", "step", "coordinate_size", "coordinate_change")
"""A row for each module, width, seed and step."""
