"""The summary of a trace: a row per module, with a count for each kind of hook."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from torch import nn

from hookcli.hooks.kinds import HookKind
from hookcli.table import Column, Row, columns_named
from hookcli.table.columns import declared

Firings = Sequence[Mapping[str, Any]]
"""The rows of a trace."""


def summary_columns(kinds: Sequence[HookKind]) -> Sequence[Column]:
    """The columns of a summary: a count for each of these kinds, and the memory saved for backward."""
    counts = (declared(kind, _heading(kind), "firings") for kind in kinds)
    return (*columns_named("fqn", "type"), *counts, *columns_named("kept"))


def summarized(firings: Firings, model: nn.Module, kinds: Sequence[HookKind]) -> list[Row]:
    """A row per module at which hooks fired, in the model's order; firings outside the model come last."""
    modules = dict(model.named_modules())
    most, _ = most_kept(firings)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in firings:
        where = row["fqn"] if row["fqn"] in modules else row["fqn"].rpartition(".")[0] or row["fqn"]
        where = "" if where not in modules and "(" not in where else where
        counts[where][row["kind"]] += 1
        counts[where]["kept"] += (row["kept"] or 0) if row["pass"] == most else 0
    first = [name for name in modules if name in counts]
    return [
        Row(
            {"fqn": name, "type": type(modules[name]).__name__ if name in modules else None}
            | {key: counts[name][key] for key in (*kinds, "kept")}
        )
        for name in [*first, *(name for name in counts if name not in modules)]
    ]


def most_kept(firings: Firings) -> tuple[int, int]:
    """The pass that saved the most memory for its backward, and how many bytes."""
    sums: Counter[int] = Counter()
    for row in firings:
        sums[row["pass"]] += row["kept"] or 0
    return max(sums.items(), key=itemgetter(1), default=(0, 0))


def _heading(kind: str) -> str:
    """The heading of a kind's narrow column: its name in short words."""
    for long, short in _SHORT.items():
        kind = kind.replace(long, short)
    return kind.replace("_", " ")


_SHORT = {
    "saved_tensor_": "",
    "tensor_": "",
    "post_accumulate_grad": "accum_grad",
    "backward": "bwd",
    "forward": "fwd",
    "registration": "regd",
    "parameter": "param",
    "module": "mod",
    "creation": "made",
    "engine_callback": "pass_over",
    "optimizer": "optim",
    "state_dict": "state",
    "output": "out",
    "input": "in",
}
