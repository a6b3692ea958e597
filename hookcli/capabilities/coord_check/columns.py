"""Columns of a coordinate check: sizes of outputs, and how they grow with the width."""

from typing import Any

from hookcli.table.column import Column, Kind

_FIGURE: dict[str, Any] = {"kind": Kind.FIGURE, "charted": False}
DECLARED = (
    Column("size_narrowest", "Narrowest", pair="sizes", drop=30, **_FIGURE),
    Column("size_widest", "Widest", pair="sizes", drop=30, **_FIGURE),
    Column("initial_slope", "Initial slope", pair="initial", drop=10, **_FIGURE),
    Column("initial_slope_error", "±", pair="initial", drop=10, **_FIGURE),
    Column("size_slope", "Slope", **_FIGURE),
    Column("size_slope_error", "±", **_FIGURE),
    Column("change_slope", "Slope of change", **_FIGURE),
    Column("change_slope_error", "±", **_FIGURE),
    Column("with_width", "With width", kind=Kind.TEXT, compared=False, left=True),
    Column("width", "Width", kind=Kind.SETTING, charted=False),
    Column("seed", "Seed", kind=Kind.COUNT, charted=False),
    Column("coordinate_size", "Size", **_FIGURE),
    Column("coordinate_change", "Change", **_FIGURE),
)
"""A size is the mean absolute value of what a module returns; a slope, that of its logarithm over that of the width."""
