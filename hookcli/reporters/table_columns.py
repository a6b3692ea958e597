"""Chooses the columns of a table: those that hold information and fit."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.hooks.kinds import HookKind
from hookcli.reporters.footer import by_reason
from hookcli.table import STATS_KEYS, Column, Report, Row
from hookcli.table.columns import MEMORY_KINDS
from hookcli.table.grouping import View
from hookcli.table.marks import mark
from hookcli.table.names import is_operator

# Columns shown only on a wide screen or on request, the most dispensable first.


def _interest(kind: HookKind) -> tuple[bool, bool, bool, int]:
    return "regist" not in kind, "optim" not in kind, "state" not in kind, -list(HookKind).index(kind)


_KINDS = frozenset(column.name for column in MEMORY_KINDS)
_COUNTS = tuple(sorted(HookKind, key=_interest))
_DISPENSABLE = (
    *_COUNTS,  # of firings: rare kinds first
    *(
        "index",
        "trainable",
        *("a_seconds", "b_seconds", "a_ratio", "b_ratio"),
        *("buffer_bytes", "input_bytes", "workspace_bytes", "temporary_bytes"),
        "forward_seconds",
        "backward_seconds",
        "weight",
        "update",
        "dtype",
        "numel",
        *("macs_share", "params_share", "read_bytes", "written_bytes"),
        "input_shape",
        "before_l2",
        "l2",
        "call",
        "calls",
    ),
    *("order", "flags", "type", "shape", "zeros"),
    *("grad_bytes", "optimizer_bytes", "param_bytes", "change_bytes", "operator", "activation_bytes"),
    *("min", "source", "max", "std", "out_shape", "mean", "in_shape", "out_l2", "bytes", "kept", "us"),
    *("error_max", "params", "elements", "fqns", "backward_self_us", "forward_self_us", "backward_us", "forward_us"),
    *("a", "b"),
    *("threshold", "value", "asked_by", "mean_abs", "times", "cosine", "growth"),
    *("a_backward_us", "b_backward_us", "a_forward_us", "b_forward_us", "slowdown"),
    *("outside_bfloat16", "outside_float8_e5m2", "p1", "outside_float16", "p99", "outside_float8_e4m3", "p50"),
)
_DISPENSABLE_AT_REST = (
    *("numel", "type", "p1", "p50", "p99", "outside_bfloat16", "outside_float8_e5m2", "l2", "min", "mean", "file"),
    *("outside_float8_e4m3", "max", "zeros", "outside_float16", "std", "dtype"),
)
"""Columns of tensors at rest whose order among the dispensable is another: a file's shapes and bytes stay longest."""
_DISPENSABLE_BETWEEN_FILES = ("mean_abs", "shape", "cosine", "max_abs", "times", "dtype")
_ON_REQUEST = (
    *("index", "depth", "trainable", "line", "id", "next", "source", "differs", "remedy", "cause"),
    *(f"{side}_{key}_self_us" for side in "ab" for key in ("forward", "backward")),
    *(f"{which}_{key}" for which in ("out", "before") for key in STATS_KEYS if key != "l2"),
)
# Columns that say little without each other.
_PAIRS = ({"a", "b"}, *({f"a_{key}", f"b_{key}"} for key in ("seconds", "ratio", "forward_us", "backward_us")))
# Columns of sentences, which are too wide for a table and are written below it.
_BELOW = ("note", "hint")
_MARK = Column("mark", "")
_GRADIENTS = ("parameter", "output", "input")
"""The `kind` of rows of gradients, which vanish or explode by their norms."""


def reads_left(report: Report, name: str) -> bool:
    """Return whether a column holds words, which align left, rather than figures."""
    return name in ("mark", "fqns", "tasks", "weights") or any(
        isinstance(row.get(name), (str, bool)) for row in report.rows
    )


def continues(row: Row, before: Row | None) -> bool:
    """Return whether a row is another tensor or rank of the call in the row before."""
    keys = ("fqn", "kind", "call", "pass")
    further = "fqn" in row.values and (row.get("path") or row.get("rank") is not None)
    return before is not None and bool(further) and all(row.get(key) == before.get(key) for key in keys)


def visible(report: Report, view: View) -> list[Column]:
    """Return the columns to show: the chosen ones, else all that are not on request only and hold new information."""
    if view.columns:
        return list(report.columns)
    hidden = {*_ON_REQUEST, *_BELOW} - ({"id"} if any(c.name == "inputs" for c in report.columns) else set())
    # The line of an operator is shown; the source of a check is on request.
    hidden -= {"source"} if any(is_operator(row.fqn) for row in report.rows) else set()
    chosen = [c for c in report.columns if c.name not in hidden and _speaks(report, c.name)]
    marked = not any(c.name in _BELOW for c in report.columns) and any(mark(row) for row in report.rows)
    return [*chosen, _MARK] if marked else chosen


def _speaks(report: Report, name: str) -> bool:
    if not report.rows:
        return True  # headings alone show that nothing was measured
    if name == "fired":
        return any((row.get("fired") or 0) > (row.get("merged") or 1) for row in report.rows)
    values = [row.get(name) for row in report.rows]
    if name in ("nan", "inf", "grad_nan", "grad_inf"):
        return False  # the mark has it, with the count
    if name == "order" and values == [row.get("bucket") for row in report.rows]:
        return False
    if name == "dtype":  # the run's dtype is above the table
        return any(value not in (None, "", report.meta.get("dtype", "float32")) for value in values)
    shown_if_set = ("path", "call", "calls", "pass", "order", "flags", "phase")
    if name in shown_if_set or any(isinstance(value, bool) for value in values):
        nothing = (None, "", 0, "float32", "train") if name != "calls" else (None, 1)
        return any(value not in nothing for value in values)
    if name == "step":
        return len(set(values)) > 1
    if name == "kind":
        return len(set(values)) > 1 or not set(values) <= {"parameter", "output", "input"}
    if name in (*HookKind, "no_grad_forwards", "recorded_forwards") or name in _KINDS:
        return any(values)
    return any(value is not None for value in values) or name in STATS_KEYS


def fitted(report: Report, columns: Sequence[Column], widths: dict[str, int], width: int | None) -> list[Column]:
    """Leave out columns until the rest fit, the most dispensable first; of gradients the norm stays longest."""
    if width is None:
        return list(columns)
    # A column of words may have the name of a hook kind: the names of nodes.
    order: Sequence[str] = (*_DISPENSABLE_AT_REST, *_DISPENSABLE) if report.probe == "weights" else _DISPENSABLE
    if any(column.name == "change_rank" for column in columns):
        order = _DISPENSABLE_BETWEEN_FILES
    if not any(column.name == "forward_self_us" for column in columns):  # times that nobody asked for
        order = ("forward_us", "backward_us", *order)
    dispensable = {c.name for c in columns if c.name in order and (c.name not in _COUNTS or c.unit == "firings")}
    room = width + 2 - sum(widths[c.name] + 2 for c in columns if c.name not in dispensable)
    norm = "l2" if report.rows and report.rows[0].get("kind") in _GRADIENTS else ""
    dropped = set()
    for name in sorted(dispensable, key=lambda name: (name == norm, order.index(name)), reverse=True):
        if widths[name] + 2 <= room:
            room -= widths[name] + 2
        else:
            dropped.add(name)
    dropped |= {name for pair in _PAIRS if dropped & pair for name in pair}
    return [c for c in columns if c.name not in dropped]


def notes(report: Report, columns: Sequence[Column]) -> list[str]:
    """Return a report's sentences, grouped by text; none if their column is shown."""
    shown = {column.name for column in columns}
    below = [column.name for column in report.columns if column.name in _BELOW and column.name not in shown]
    owners = {name: "check" if name == "hint" else "fqn" for name in below}
    said = [[(r[name], str(r[key] or "(model)")) for r in report.rows if r.get(name)] for name, key in owners.items()]
    return [text for pairs in said for text in by_reason(pairs)]
