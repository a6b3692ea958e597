"""Columns of training: losses, norms of gradients, weights and updates, settings of optimizers, times of a step."""

from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge, Shown

_NORM: dict[str, Any] = {"kind": Kind.FIGURE, "merge": Merge.NORM}
_GRADIENT: dict[str, Any] = {**_NORM, "bar": Bar.LOG, "about": "gradient"}
_PARAMETERS: dict[str, Any] = {"kind": Kind.FIGURE, "bar": Bar.PAGE, "about": "parameters", "of_parts": True}
_FAULTS: dict[str, Any] = {
    "unit": "elements",
    "kind": Kind.COUNT,
    "merge": Merge.SUM,
    "shown": Shown.MARK,
    "about": "gradient",
    "of_parts": True,
}
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
    Column("param_grad", "Param grad", of_parts=True, full="L2 of the parameters' gradients", **_GRADIENT),
    Column("weight", "Weight", merge=Merge.NORM, drop=13, aside=("steps",), full="L2 of the weights", **_PARAMETERS),
    Column("update", "Update", merge=Merge.NORM, drop=14, aside=("steps",), full="L2 of the update", **_PARAMETERS),
    Column("grad_nan", "NaN in gradients", **_FAULTS),
    Column("grad_inf", "Inf in gradients", **_FAULTS),
)
"""Figures of the parameters of a module, which add up over modules."""
TRAINING = (
    *OF_PARAMETERS,
    Column("loss", "Loss", kind=Kind.LOSS),
    Column("first_loss", "First loss", kind=Kind.LOSS),
    Column("best_loss", "Best loss", kind=Kind.LOSS),
    Column("best_step", "At step", kind=Kind.COUNT, drop=15, charted=False),
    Column("loss_fault", "Loss not finite", kind=Kind.TEXT, shown=Shown.ASKED),
    Column("output_grad", "Output grad", full="L2 of the output's gradient", **_GRADIENT),
    Column("unclipped_grad", "Grad before clipping", **_NORM),
    Column("ratio", "|dw|/|w|", merge=Merge.RATIO, **_PARAMETERS),
    Column("optimizer", "Optimizer", kind=Kind.TEXT),
    Column("group", "Group", kind=Kind.COUNT, charted=False),
    Column("parameters", "Params", kind=Kind.QUANTITY, charted=False),
    Column("lr", "Learning rate", kind=Kind.SETTING),
    Column("weight_decay", "Weight decay", kind=Kind.SETTING),
    Column("momentum", "Momentum", kind=Kind.SETTING),
    Column("betas", "Betas", kind=Kind.SETTINGS),
    Column("seconds", "Time", bar=Bar.PAGE, **_SECONDS),
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
    Column("checksum", "Checksum", kind=Kind.TEXT, compared=False),
)
