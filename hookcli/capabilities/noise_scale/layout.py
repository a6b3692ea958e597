"""The columns of the report, apart from what measures them: help lists them without torch."""

from hookcli.table.columns import columns_named

COLUMNS = columns_named(
    *("fqn", "type", "params", "noise_scale", "noise_scale_error", "noise_scale_low", "noise_scale_high"),
    *("grad_sq", "grad_variance", "index"),
)
