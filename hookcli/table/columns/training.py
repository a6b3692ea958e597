"""Columns of training: losses, norms of gradients, weights and updates, settings of optimizers, times of a step."""

from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge, Shown

_NORM: dict[str, Any] = {"kind": Kind.FIGURE, "merge": Merge.NORM}
_FAULTS: dict[str, Any] = {"unit": "elements", "kind": Kind.COUNT, "merge": Merge.SUM, "shown": Shown.MARK}
_SECONDS: dict[str, Any] = {"unit": "seconds", "kind": Kind.SECONDS}

STEP_PARTS = (
    Column("data_seconds", "Waiting for data", **_SECONDS),
    Column("forward_seconds", "Forward", drop=11, **_SECONDS),
    Column("backward_seconds", "Backward", drop=12, **_SECONDS),
    Column("optimizer_seconds", "Optimizer", **_SECONDS),
    Column("rest_seconds", "Rest of the step", **_SECONDS),
)
"""Times of the parts of a step, in the order in which it takes them."""
OF_PARAMETERS = (
    Column("param_grad", "Param grad", bar=Bar.LOG, **_NORM),
    Column("weight", "Weight", drop=13, **_NORM),
    Column("update", "Update", drop=14, **_NORM),
    Column("grad_nan", "NaN in gradients", **_FAULTS),
    Column("grad_inf", "Inf in gradients", **_FAULTS),
)
"""Figures of the parameters of a module, which add up over modules."""
TRAINING = (
    *OF_PARAMETERS,
    Column("loss", "Loss", kind=Kind.LOSS),
    Column("first_loss", "First loss", kind=Kind.LOSS),
    Column("output_grad", "Output grad", bar=Bar.LOG, **_NORM),
    Column("unclipped_grad", "Grad before clipping", **_NORM),
    Column("ratio", "|dw|/|w|", kind=Kind.FIGURE, merge=Merge.RATIO),
    Column("optimizer", "Optimizer", kind=Kind.TEXT),
    Column("group", "Group", kind=Kind.COUNT, charted=False),
    Column("parameters", "Params", kind=Kind.QUANTITY, charted=False),
    Column("lr", "Learning rate", kind=Kind.SETTING),
    Column("weight_decay", "Weight decay", kind=Kind.SETTING),
    Column("momentum", "Momentum", kind=Kind.SETTING),
    Column("betas", "Betas", kind=Kind.SETTING),
    Column("seconds", "Time", **_SECONDS),
    Column("plain_seconds", "Time without hooks", **_SECONDS),
    *STEP_PARTS,
    Column("hookcli_seconds", "hookcli's own work", **_SECONDS),
    Column("steps", "Steps", kind=Kind.COUNT),
    Column("recorded_steps", "Recorded", kind=Kind.COUNT),
    Column("forwards", "Forwards", kind=Kind.COUNT),
    Column("no_grad_forwards", "No grad", kind=Kind.COUNT, shown=Shown.SET),
    Column("recorded_forwards", "Recorded no grad", kind=Kind.COUNT, shown=Shown.SET),
    Column("ended", "End"),
    Column("non_finite", "First non-finite value"),
    Column("slower", "Slower"),
)
