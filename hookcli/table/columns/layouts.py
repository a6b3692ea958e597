"""The columns of each probe's report, apart from the probes, so that help can list them without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hookcli.table.column import Column
from hookcli.table.columns import columns_named, names
from hookcli.table.columns.comparison import WHOLE_MODELS
from hookcli.table.columns.costs import TIMES
from hookcli.table.columns.memory import MEMORY_KINDS
from hookcli.table.columns.statistics import BEFORE_COLUMNS, HIST_COLUMNS, OUT_COLUMNS, STATS_COLUMNS
from hookcli.table.columns.training import STEP_PARTS

_COSTS = columns_named("params", "params_share", "trainable", "macs", "macs_share", "kept")
SHAPES = (
    *columns_named("fqn", "type", "depth", "call", "index", "path", "input_shape", "output_shape", "dtype"),
    *_COSTS,
)
STATISTICS = (*columns_named("fqn", "type", "call", "index", "path", "shape", "dtype"), *STATS_COLUMNS)
"""Statistics of the tensors that modules receive or return."""
GRADS = (
    *columns_named("fqn", "kind", "type", "call", "pass", "index", "path", "shape", "dtype", fqn="Name"),
    *STATS_COLUMNS,
)
PARAMETERS = (
    *columns_named("fqn", "kind", "type", "index", "shape", "dtype", "requires_grad", fqn="Name"),
    *STATS_COLUMNS,
)
GRAPH = (
    *columns_named("order", "node", "fqn", "call", "pass", "fired", "in_shape", "out_shape", "dtype", fqn="Made by"),
    *STATS_COLUMNS,
    *OUT_COLUMNS,
    *columns_named("us", "id", "next"),
)
TRACE = columns_named(
    *("index", "us", "kind", "fqn", "type", "call", "pass", "path", "name", "shape", "dtype", "bytes", "kept"),
    fqn="Where",
    name="What",
)
TRACE_DETAILS = tuple(column for column in TRACE if column.name not in ("index", "us", "pass"))
"""Columns of a trace that an event's place in a picture does not show."""
FLOW = columns_named("id", "kind", "fqn", "type", "number", "call", "inputs", "input_shape", "output_shape", "dtype")
"""The forward flow of tensors. `number` counts the calls of one function in one call of a module, from 1."""
PACKAGE = columns_named("module", "action", "rule", "size", "needed_by", "index")


def _leaving(columns: Sequence[Column], first: Sequence[str]) -> tuple[Column, ...]:
    """These columns, of which the `first` ones leave a narrow table before all others."""
    return tuple(replace(c, drop=first.index(c.name) - len(first)) if c.name in first else c for c in columns)


SPECTRAL = columns_named("spectral_norm", "stable_rank")
WEIGHTS = _leaving(
    (
        *columns_named("fqn", "kind", "type", "file", "shape", "dtype", "bytes", fqn="Name"),
        *STATS_COLUMNS,
        *HIST_COLUMNS,
        *SPECTRAL,
    ),
    (
        *("numel", "type", "p1", "p50", "p99", "outside_bfloat16", "outside_float8_e5m2", "l2", "min", "mean", "file"),
        *("outside_float8_e4m3", "max", "zeros", "outside_float16", "std", "dtype"),
    ),
)
"""Tensors at rest: of a file, or the parameters and buffers of a model. A file's shapes and bytes stay longest."""
FILES = _leaving(
    columns_named(
        *("fqn", "shape", "dtype", "max_abs", "mean_abs", "rel_l2", "cosine", "change_rank", "rank_share", "times"),
        "differs",
        fqn="Name",
    ),
    ("mean_abs", "shape", "cosine", "max_abs", "times", "dtype"),
)
"""A comparison of two files of weights."""


def restored(probe: str, columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of a saved report, in the order in which the probe's own columns leave a narrow table."""
    names = {column.name for column in columns}
    layout = WEIGHTS if probe == "weights" else FILES if "change_rank" in names else ()
    drops = {column.name: column.drop for column in layout}
    return tuple(replace(column, drop=drops[column.name]) if column.name in drops else column for column in columns)


RECORDED = columns_named(
    *("std", "mean", "min", "max", "l2", "zeros", "output_grad", "param_grad", "weight", "update", "ratio"),
    *names((*TIMES, *HIST_COLUMNS)),
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
CHARTED_FIRST = ("loss", "param_grad", "ratio", "std", "output_grad", "weight", "lr")
"""Figures that the page of two records charts before all others."""


TRAINING_MEMORY = columns_named(
    *("param_bytes", "grad_bytes", "optimizer_bytes"),
    param_bytes="parameters",
    grad_bytes="gradients",
    optimizer_bytes="AdamW",
)
"""Memory that training takes besides what is kept for backward, in the totals of shapes."""
MEMORY = (*columns_named("fqn", "type", "bytes", bytes="At peak"), *MEMORY_KINDS)
"""Bytes that each module holds at the peak of a training step, without those of its parts."""
TIMELINE = (
    *columns_named("index", "phase", "fqn", "operator", "change_bytes", "bytes", "highest", bytes="After"),
    *MEMORY_KINDS,
)
"""Operators of a training step, with the bytes in use after each, and at most while it ran."""
FITS = (
    replace(*columns_named("batch"), unit="items"),
    *columns_named("highest", "left_bytes", "phase", "fqn"),
    *MEMORY_KINDS,
)
"""Batches with the peak of a training step on each, and how much of a limit is left."""


def with_operators(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Add the columns of operators: source lines beside the type, and after costs the bytes that operators move."""
    at = next((number + 1 for number, column in enumerate(columns) if column.name == "type"), len(columns))
    moved = columns_named("read_bytes", "written_bytes") if any(column.name == "macs" for column in columns) else ()
    return (*columns[:at], *columns_named("source"), *columns[at:], *moved)


DIFF = columns_named(*("fqn", "type", "source", "kind", "call", "pass", "path", "figure", "a", "b", "times", "differs"))
"""A comparison of two reports: the figure of each row that is furthest off."""
TENSORS = columns_named(
    *("fqn", "type", "kind", "call", "path", "shape", "dtype"),
    *("max_abs", "mean_abs", "rel_l2", "cosine", "growth", "times"),
)
"""A comparison of the tensors of two models that run side by side."""
DUMPED = (*TENSORS[:4], *columns_named("batch", "pass"), *TENSORS[4:])
"""A comparison with a dump."""
DUMPED_IF_FILLED = columns_named("kind", "batch", "pass", "source")
"""Columns of DUMPED that are there only if they say something."""
BUCKET = columns_named("hook", "step", "bucket", "order", "params", "fqns", "elements", "bytes_before")
"""Columns that tell which bucket a row is of, on any rank."""
ERRORS = columns_named("exact_l2", "error_l2", "after_l2")
"""Norms of the exact mean over ranks, of a hook's error, and of its result."""
BUCKETS = (
    *BUCKET,
    *columns_named("bytes_after", "ratio", "seconds", ratio="Ratio"),
    *BEFORE_COLUMNS,
    *STATS_COLUMNS,
    *ERRORS,
    *columns_named("relative_l2", "error_max", "cosine"),
)
"""Buckets of gradients before and after a communication hook."""
FINDINGS = columns_named(
    *("check", "severity", "fqn", "value", "threshold", "message", "remedy", "cause", "hint", "source")
)
FINDINGS_NEEDED = columns_named("check", "severity", "message", "remedy")
"""Columns without which findings are shown as a table, and not as sentences."""
CHECKS = columns_named("check", "name", "severity", "threshold", "asked_by", "means")
HOOKS_FOUND = columns_named("fqn", "type", "kind", "order", "function", "file", "line", "flags", "legacy", "note")
PLUGINS = columns_named("kind", "name", "distribution", "target", "state")
HOOK_KINDS = columns_named("name", "fires", "registered_by", "command", name="Hook")
MODELS = columns_named("name", "kind", "params", "input", "weights", "tasks", name="Model")
DUMP_PLACE = columns_named("kind", "type", "batch", "call", "pass", "path", "source")
"""Fields of a dump's index on a tensor's place, each of which may be absent."""
DUMP_TENSOR = columns_named("shape", "dtype", "file", "name")
"""Fields of a dump's index on the tensor itself."""
TIMED = (*columns_named("fqn", "type", "calls"), *TIMES)
"""Times of the modules of a recorded step, over all of their calls."""
UPDATES = columns_named(
    *("fqn", "type", "shape", "dtype", "weight", "update", "ratio"), fqn="Parameter", weight="|w|", update="|dw|"
)
"""What an optimizer's step changed."""
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
    weight="weights",
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
"""Figures over time, of which charts have the first ones unless others are asked for."""
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
    loss="Last recorded loss",
    seconds="Step time",
)
"""The models that a recorded program ran."""
RECORD_DIFF = columns_named(
    *("step", "phase", "loss_a", "loss_b", "module", "figure", "a", "b", "times", "count", "differs"),
    module="First beyond tolerance",
)
"""A comparison of the steps of two records."""
WHOLE_MODEL_DIFF = (*columns_named("step", "phase"), *WHOLE_MODELS)
"""A comparison of the steps of different models."""
OF_STEP = frozenset(
    ("step", "forward", "forwards", "observed_forwards", "losses", "seconds", "plain_seconds", "notes", "complete")
)
"""Entries of the `meta` of a recorded step that its other steps need not share."""
REPEATS = names(columns_named("pass", "call", "rank"))
"""Numbers that tell rows of one tensor apart."""
