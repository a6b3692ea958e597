"""The columns of probes' reports, apart from the probes, so that help can list them without importing torch; and the
column that a user names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hookcli.errors import UsageError, unknown
from hookcli.table.report import HIST_COLUMNS, STATS_COLUMNS, Column, columns_named
from hookcli.table.times import NAMES

KEPT = Column("kept", "Kept", "bytes")
SHAPES = (
    *columns_named("fqn", "type", "depth", "call", "index", "path"),
    Column("input_shape", "Input"),
    Column("output_shape", "Output"),
    *columns_named("dtype"),
    Column("params", "Params", "parameters"),
    Column("params_share", "Params %"),
    Column("trainable", "Trainable", "parameters"),
    Column("macs", "MACs", "multiply-accumulates"),
    Column("macs_share", "MACs %"),
    KEPT,
)
STATISTICS = (*columns_named("fqn", "type", "call", "index", "path", "shape", "dtype"), *STATS_COLUMNS)
"""Statistics of the tensors that modules receive or return."""
GRADS = (
    Column("fqn", "Name"),
    *columns_named("kind", "type", "call", "pass", "index", "path", "shape", "dtype"),
    *STATS_COLUMNS,
)
PARAMETERS = (
    Column("fqn", "Name"),
    *columns_named("kind", "type", "index", "shape", "dtype", "requires_grad"),
    *STATS_COLUMNS,
)
GRAPH = (
    *columns_named("order", "node"),
    Column("fqn", "Made by"),
    *columns_named("call", "pass"),
    Column("fired", "Fired", "times"),
    Column("in_shape", "Gradient in"),
    Column("out_shape", "Gradient out"),
    *columns_named("dtype"),
    *STATS_COLUMNS,
    *(replace(column, name=f"out_{column.name}", title=f"Out {column.title}") for column in STATS_COLUMNS),
    Column("us", "µs", "microseconds"),
    *columns_named("id", "next"),
)
TRACE = (
    *columns_named("index"),
    Column("us", "µs", "microseconds"),
    *columns_named("kind"),
    Column("fqn", "Where"),
    *columns_named("type", "call", "pass", "path"),
    Column("name", "What"),
    *columns_named("shape", "dtype"),
    Column("bytes", "Bytes", "bytes"),
    KEPT,
)
FLOW = (
    *columns_named("id", "kind", "fqn", "type", "number", "call"),
    Column("inputs", "From"),
    Column("input_shape", "Input"),
    Column("output_shape", "Output"),
    *columns_named("dtype"),
)
"""The forward flow of tensors. `number` counts the calls of one function in one call of a module, from 1."""
PACKAGE = (
    *columns_named("module", "action"),
    Column("rule", "Why"),
    Column("size", "Bytes", "bytes"),
    *columns_named("needed_by", "index"),
)
BYTES = Column("bytes", "Bytes", "bytes")
SPECTRAL = (Column("spectral_norm", "Spectral norm"), Column("stable_rank", "Stable rank"))
WEIGHTS = (
    Column("fqn", "Name"),
    *columns_named("kind", "type", "file", "shape", "dtype"),
    BYTES,
    *STATS_COLUMNS,
    *HIST_COLUMNS,
    *SPECTRAL,
)
"""Tensors at rest: of a file, or the parameters and buffers of a model."""


MEMORY_KINDS = tuple(
    Column(f"{name}_bytes", title, "bytes")
    for name, title in (
        ("param", "Parameters"),
        ("buffer", "Buffers"),
        ("grad", "Gradients"),
        ("optimizer", "Optimizer"),
        ("input", "Inputs"),
        ("activation", "Activations"),
        ("temporary", "Temporaries"),
        ("workspace", "Workspace"),
    )
)
"""Bytes in use, by kind, in the order of the engine's `Kind`."""
MEMORY = (*columns_named("fqn", "type"), Column("bytes", "At peak", "bytes"), *MEMORY_KINDS)
"""Bytes that each module holds at the peak of a training step, without those of its parts."""
TIMELINE = (
    *columns_named("index", "phase", "fqn", "operator"),
    Column("change_bytes", "Change", "bytes"),
    Column("bytes", "After", "bytes"),
    Column("highest", "Peak", "bytes"),
    *MEMORY_KINDS,
)
"""Operators of a training step, with the bytes in use after each, and at most while it ran."""

FITS = (
    Column("batch", "Batch", "items"),
    Column("highest", "Peak", "bytes"),
    Column("left_bytes", "Left", "bytes"),
    Column("phase", "Phase"),
    Column("fqn", "Layer"),
    *MEMORY_KINDS,
)
"""Batches with the peak of a training step on each, and how much of a limit is left."""


def with_operators(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Add the columns of operators: source lines beside the type, and after costs the bytes that operators move."""
    at = next((number + 1 for number, column in enumerate(columns) if column.name == "type"), len(columns))
    moved = _MOVED if any(column.name == "macs" for column in columns) else ()
    return (*columns[:at], *columns_named("source"), *columns[at:], *moved)


_MOVED = (Column("read_bytes", "Read", "bytes"), Column("written_bytes", "Written", "bytes"))


def find_column(option: str, given: str, columns: Sequence[Column]) -> Column:
    """The column with this name, or this heading, in any case. Raises UsageError if there is none, or several."""
    named = {column.name: column for column in columns}
    if given in named:
        return named[given]
    asked = " ".join(given.casefold().split())
    found = [c for c in named.values() if asked in (c.name.casefold(), " ".join(c.title.casefold().split()))]
    if not found and given in NAMES:
        raise UsageError(f"{option}: {given} needs --time")
    if not found:
        raise UsageError(f"{option}: {unknown('column', given, [*named], also=_headings(named))}")
    if len(found) > 1:
        names = ", ".join(column.name for column in found)
        raise UsageError(f"{option}: several columns are headed {given!r}; choose from: {names}")
    return found[0]


def _headings(named: Mapping[str, Column]) -> list[str]:
    """The headings that name one column, and are not its name in another case."""
    titles = [column.title for column in named.values()]
    return [t for t in titles if t and titles.count(t) == 1 and t.casefold() not in named]
