"""Columns of a coordinate check: sizes of outputs, and how they grow with the width."""

from typing import Any

from hookcli.table.column import Column, Kind, Shown

_FIGURE: dict[str, Any] = {"kind": Kind.FIGURE}
_TEXT: dict[str, Any] = {"kind": Kind.TEXT, "compared": False}
_TITLES = {"initial": "Initial slope", "size": "Slope", "change": "Slope of change"}
DECLARED = (
    Column("size_narrowest", "Narrowest", pair="sizes", drop=30, **_FIGURE),
    Column("size_widest", "Widest", pair="sizes", drop=30, **_FIGURE),
    Column("initial_growth", _TITLES["initial"], drop=10, **_TEXT),
    *(Column(f"{kind}_growth", _TITLES[kind], **_TEXT) for kind in ("size", "change")),
    *(Column(f"{kind}_slope", title, shown=Shown.ASKED, **_FIGURE) for kind, title in _TITLES.items()),
    *(Column(f"{kind}_slope_error", "±", shown=Shown.ASKED, **_FIGURE) for kind in _TITLES),
    Column("with_width", "With width", left=True, **_TEXT),
    Column("width", "Width", kind=Kind.SETTING, charted=False),
    Column("best_rate", "Best rate", kind=Kind.SETTING),
    Column("as_good", "As good", drop=40, **_TEXT),
    Column("seed", "Seed", kind=Kind.COUNT, charted=False),
    Column("coordinate_size", "Size", **_FIGURE),
    Column("coordinate_change", "Change", **_FIGURE),
)
"""A size is the mean absolute value of what a module returns; a slope: of its logarithm over the width's."""
