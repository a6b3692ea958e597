"""The columns of each probe's report, apart from the probes, so that help can list them without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hookcli.registry.capability import capabilities, load_text
from hookcli.registry.pieces import left_out
from hookcli.table.column import Column
from hookcli.table.columns import columns_named
from hookcli.table.columns.statistics import STATS_COLUMNS

_COSTS = columns_named("params", "params_share", "trainable", "macs", "macs_share", "kept")
SHAPES = (
    *columns_named("fqn", "type", "depth", "call", "index"),
    replace(columns_named("path")[0], drop=48),  # of outputs of several tensors, which costs outlast
    *columns_named("input_shape", "output_shape", "dtype"),
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
EVENT_DETAILS = columns_named("kind", "fqn", "type", "call", "path", "name", "shape", "dtype", "bytes", "kept")
"""Columns of an event that its place in a picture does not show."""


def leaving(columns: Sequence[Column], first: Sequence[str]) -> tuple[Column, ...]:
    """These columns, of which the `first` ones leave a narrow table before all others."""
    return tuple(replace(c, drop=first.index(c.name) - len(first)) if c.name in first else c for c in columns)


FILES = leaving(
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
    layout = FILES if "change_rank" in names else ()
    for one in capabilities():
        if one.name == probe and one.layout:
            with left_out(one, f"layout={one.layout!r}"):
                layout = load_text(one.layout)
    drops = {column.name: column.drop for column in layout}
    return tuple(replace(column, drop=drops[column.name]) if column.name in drops else column for column in columns)


TRAINING_MEMORY = columns_named(
    *("param_bytes", "grad_bytes", "optimizer_bytes"),
    param_bytes="parameters",
    grad_bytes="gradients",
    optimizer_bytes="AdamW",
)
"""Memory that training takes besides what is kept for backward, in the totals of shapes."""


def with_operators(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Add the columns of operators: source lines beside the type, and after costs the bytes that operators move."""
    at = next((number + 1 for number, column in enumerate(columns) if column.name == "type"), len(columns))
    moved = columns_named("read_bytes", "written_bytes") if any(column.name == "macs" for column in columns) else ()
    return (*columns[:at], *columns_named("source"), *columns[at:], *moved)


DIFF = columns_named(
    *("fqn", "type", "source", "kind", "call", "pass", "path", "head", "expert", "figure", "a", "b", "times", "differs")
)
"""A comparison of two reports: the figure of each row that is furthest off."""
TENSORS = columns_named(
    *("fqn", "type", "kind", "call", "path", "shape", "dtype"),
    *("max_abs", "mean_abs", "rel_l2", "cosine", "growth", "times"),
)
"""A comparison of the tensors of two models that run side by side."""
PRECISION = columns_named("a_error", "b_error", "own", "inherited")
"""What further runs add to such a comparison."""
DUMPED = (*TENSORS[:4], *columns_named("batch", "pass"), *TENSORS[4:])
"""A comparison with a dump."""
DUMPED_IF_FILLED = columns_named("kind", "batch", "pass", "source")
"""Columns of DUMPED that are there only if they say something."""
FINDINGS = columns_named(
    *("check", "severity", "fqn", "value", "threshold", "message", "remedy", "cause", "hint", "source")
)
FINDINGS_NEEDED = columns_named("check", "severity", "message", "remedy")
"""Columns without which findings are shown as a table, and not as sentences."""
CHECKS = columns_named("check", "name", "severity", "threshold", "asked_by", "means")
HOOKS_FOUND = columns_named("fqn", "type", "kind", "order", "function", "file", "line", "flags", "legacy", "note")
PLUGINS = columns_named("kind", "name", "distribution", "target", "state")
HOOK_KINDS = columns_named("name", "fires", "registered_by", "command", name="Hook")
MODELS = columns_named("name", "kind", "params", "input", "weights", "tasks", name="Model")  # another word
DUMP_PLACE = columns_named("kind", "type", "batch", "call", "pass", "path", "source")
"""Fields of a dump's index on a tensor's place, each of which may be absent."""
DUMP_TENSOR = columns_named("shape", "dtype", "file", "name")
"""Fields of a dump's index on the tensor itself."""
