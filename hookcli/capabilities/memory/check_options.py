"""The values that options take, and the options that `hookcli check` has for the peak of a training step."""

from __future__ import annotations

from dataclasses import dataclass

from hookcli.commands.option_fields import option

OPTIMIZERS = (
    *("sgd", "sgd-momentum", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "radam"),
    *("adafactor", "none"),
)
OPTIMIZER = "adamw"
"""The optimizer of a step whose memory is computed, unless another is chosen."""
IMPLEMENTATIONS = ("for-loop", "foreach", "fused")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class BudgetOptions:
    """The limit on the peak, and the step that it is of."""

    panel = "Checks"

    max_peak_memory: str | None = option(
        None,
        "Limit on memory at the peak of a training step, for example 8GiB.",
        metavar="BYTES",
        after="max_activation_memory",
    )
    optimizer: str = option(
        OPTIMIZER,
        "Optimizer of the step of --max-peak-memory.",
        metavar="NAME",
        words=OPTIMIZERS,
        after="max_graph_breaks",
        seldom=True,
    )
