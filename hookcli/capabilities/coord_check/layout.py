"""The columns of the reports of a coordinate check, apart from what measures them: help lists them without torch."""

from collections.abc import Iterable

from hookcli.table.column import Column, Kind
from hookcli.table.columns import columns_named

COLUMNS = columns_named(
    *("fqn", "type", "size_narrowest", "size_widest", "initial_growth", "size_growth", "change_growth", "with_width"),
    *("initial_slope", "initial_slope_error", "size_slope", "size_slope_error", "change_slope", "change_slope_error"),
    "index",
)
"""A row for each module: its slopes in words, as 0.48 ± 0.05, and in numbers."""
POINTS = columns_named("fqn", "type", "width", "seed", "step", "coordinate_size", "coordinate_change")
"""A row for each module, width, seed and step."""


def rate_columns(rates: Iterable[float]) -> tuple[Column, ...]:
    """A row for each width: its best learning rate, and the loss with each of these."""
    losses = [Column(rate_key(rate), f"{rate:g}", kind=Kind.LOSS, drop=50, full=f"Loss at {rate:g}") for rate in rates]
    return (*columns_named("width", "best_rate", "as_good"), *losses)


def rate_key(rate: float) -> str:
    """The name of the column of a learning rate."""
    return f"loss_{rate:.12g}"
