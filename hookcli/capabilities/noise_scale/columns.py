"""Columns of the gradient noise scale, in samples, and of the two figures that it is the ratio of."""

from typing import Any

from hookcli.table.column import Column, Kind

_FIGURE: dict[str, Any] = {"kind": Kind.FIGURE, "charted": False}
DECLARED = (
    Column("noise_scale", "Noise scale", "samples", **_FIGURE),
    Column("noise_scale_error", "±", full="Standard error of the noise scale", **_FIGURE),
    Column("noise_scale_low", "At least", full="Least noise scale, at 95%", **_FIGURE),
    Column("noise_scale_high", "At most", full="Largest noise scale, at 95%", **_FIGURE),
    Column("grad_sq", "|G|²", drop=20, full="Squared norm of the true gradient", **_FIGURE),
    Column("grad_variance", "tr Σ", drop=10, full="Variance of a sample's gradient", **_FIGURE),
)
