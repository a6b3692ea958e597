"""The columns of each probe's report, apart from the probes, so that help can list them without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hookcli.table.column import Column
from hookcli.table.columns import columns_named, names
from hookcli.table.columns.costs import TIMES
from hookcli.table.columns.memory import MEMORY_KINDS
from hookcli.table.columns.statistics import HIST_COLUMNS, OUT_COLUMNS, STATS_COLUMNS

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
    return tuple(replace(column, drop=drops.get(column.name, column.drop)) for column in columns)


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
