"""The columns of recorded steps: their tables, totals, charts, and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hookcli.table.columns import columns_named, names
from hookcli.table.columns.comparison import WHOLE_MODELS
from hookcli.table.columns.costs import TIMES
from hookcli.table.columns.layouts import TRAINING_MEMORY
from hookcli.table.columns.statistics import HIST_COLUMNS, QUARTILE_COLUMNS
from hookcli.table.columns.training import STEP_PARTS

RECORDED = columns_named(
    *("std", "mean", "min", "max", "l2", "zeros", "output_grad", "param_grad", "weight", "update", "ratio"),
    *names((*TIMES, *HIST_COLUMNS, *QUARTILE_COLUMNS)),
    *("nan", "inf", "grad_nan", "grad_inf"),
)
"""Statistics of modules that a record's page shows over steps."""
STEP_CHARTS: Sequence[tuple[str, dict[str, str]]] = (
    ("Loss", {"loss": "loss"}),
    ("Learning rate", {"lr": "all parameters"}),
    ("Gradient norm", {"param_grad": "all parameters", "unclipped_grad": "before clipping"}),
    ("|dw|/|w| of the parameters", {"ratio": "all parameters"}),
    (
        "Time",
        {"seconds": "step"}
        | dict.fromkeys(("data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds"), "")
        | {"hookcli_seconds": ""},
    ),
    ("Memory", {"resident_bytes": "", "peak_bytes": ""}),
    ("Output of the model", {"mean": "", "std": ""}),
    ("Weights", {"weight": "all parameters"}),
)
"""Charts of a record's page: titles, and the figures of whole models in each, with labels where titles do not do."""
TIMED = (*columns_named("fqn", "type", "calls"), *TIMES)
"""Times of the modules of a recorded step, over all of their calls."""
UPDATES = columns_named(
    *("fqn", "type", "shape", "dtype", "weight", "update", "ratio"), fqn="Parameter", weight="|w|", update="|dw|"
)
"""The changes that an optimizer's step made to parameters."""
SETTINGS = columns_named("lr", "weight_decay", "momentum", "betas")
"""Settings of optimizers."""
NORMS_OF_GROUP = columns_named("unclipped_grad", "param_grad", "weight", "update", param_grad="Grad")
PARAMETER_GROUPS = (
    *columns_named("optimizer", "group", "parameters"),
    *SETTINGS,
    *NORMS_OF_GROUP,
    *columns_named("ratio"),
)
"""The parameter groups of optimizers, with norms over all parameters of each."""
GROUPS = tuple(column for column in PARAMETER_GROUPS if column.name not in ("unclipped_grad", "update"))
"""Parameter groups in the totals of a step, as every version has saved them."""
GROUP_LINES = columns_named(
    *("group", "parameters", "lr", "momentum", "betas", "weight_decay", "loss", "param_grad", "weight", "ratio"),
    parameters="params",
    param_grad="gradient",
    weight="weights",  # another word
)
"""Parameter groups, in lines below another table."""
TENSOR = columns_named("calls", "shape", "dtype")
"""A tensor that a module returned in a step."""
_FAULTS = columns_named("nan", "inf")
GRAD_FAULTS = columns_named("grad_nan", "grad_inf")
STEP = (
    *columns_named("fqn", "type"),
    *TENSOR[:1],
    *columns_named("path"),
    *TENSOR[1:],
    *columns_named("mean", "std", "zeros"),
    *_FAULTS,
    *columns_named("output_grad", "param_grad"),
    *GRAD_FAULTS,
    *columns_named("weight", "update", "ratio"),
)
"""A recorded step: activations, gradients and updates of each module in one row."""
MEASURED = columns_named(
    *("loss", "std", "output_grad", "param_grad", "ratio", "weight"),
    std="Std of the output",
    output_grad="L2 of the output's gradient",
    param_grad="L2 of the parameters' gradients",
    weight="L2 of the weights",
)
"""Figures over time, of which a module or parameter has one if anything was measured of it."""
STEP_TOTALS = (
    *columns_named("unclipped_grad", unclipped_grad="L2 of the gradient before clipping"),
    *STEP_PARTS,
    *columns_named("hookcli_seconds", "resident_bytes", "peak_bytes"),
)
"""Figures of a whole step: the gradient, the times of its parts, and memory."""
WITHOUT_GAPS = (*columns_named("macs", "bytes", "param_grad", "ratio"), *TRAINING_MEMORY, *STEP_TOTALS)
"""Totals that are absent where there is no value."""
OVER_TIME = (
    *columns_named("step", "forward", "seconds"),
    *MEASURED,
    *columns_named("lr"),
    *STEP_TOTALS,
    *TIMES,
    *HIST_COLUMNS,
    *columns_named("mean", "zeros"),
    *_FAULTS,
    *GRAD_FAULTS,
)
"""The recorded steps of a module or parameter."""
CHARTED = names(columns_named("loss", "lr", "param_grad", "ratio", "std", "output_grad", "weight"))
"""Figures over time in the order of charts, which have the first ones unless others are asked for."""
WHEN = columns_named("step", "phase", "forward")
EVERY_STEP = (*WHEN, *OVER_TIME, *columns_named("plain_seconds"), *STEP)
"""All that the rows of a record's steps can have."""
RANKS = columns_named(
    *("rank", "steps", "recorded_steps", "recorded_forwards", "step", "loss", "param_grad", "seconds"),
    *("data_seconds", "forward_seconds", "backward_seconds", "slower", "deviates", "non_finite", "ended"),
    seconds="Step time",
    data_seconds="Data",
)
"""The ranks of a recorded program beside each other."""
RECORDED_MODELS = columns_named(
    *("name", "parameters", "steps", "forwards", "no_grad_forwards", "recorded_steps", "recorded_forwards"),
    *("first_loss", "loss", "seconds"),
    name="Model",
    loss="Last loss",
    seconds="Step time",
)
"""The models that a recorded program ran."""
RUNS_PROBE = "runs"
RUNS = columns_named(
    *("run", "name", "steps", "loss", "best_loss", "best_step", "lr", "seconds", "loss_fault", "unlike"),
    name="Record",
    loss="Last loss",
)
"""Several recorded runs, a row for each."""
RECORD_DIFF = tuple(
    replace(column, drop=50) if column.name == "times" else column
    for column in columns_named(
        *("step", "phase", "loss_a", "loss_b", "module", "figure", "a", "b", "times", "count", "differs"),
        module="First beyond tolerance",
    )
)
"""A comparison of the steps of two records. Both figures say more than how many times the tolerance they are apart."""
WHOLE_MODEL_DIFF = (*columns_named("step", "phase"), *WHOLE_MODELS)
"""A comparison of the steps of different models."""
OF_STEP = frozenset(
    ("step", "forward", "forwards", "observed_forwards", "losses", "seconds", "plain_seconds", "notes", "complete")
)
"""Entries of the `meta` of a recorded step that its other steps need not share."""
REPEATS = names(columns_named("pass", "call", "rank"))
"""Numbers that tell rows of one tensor apart."""
