"""The columns of a sweep's report, apart from what measures them: help lists them without importing torch."""

from hookcli.table.columns import columns_named

_CHANGED = ("head", "expert", "output_change", "outputs", "loss", "loss_change", "logit", "logit_change", "bottleneck")
COLUMNS = columns_named("order", "fqn", "type", *_CHANGED, "index", order="Rank")
