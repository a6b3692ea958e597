"""Rows of what a step has measured: which of them is the first bad one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hookcli.record.observe.parts import StepView
from hookcli.table import Row
from hookcli.table.formatting import number
from hookcli.table.marks import is_lost
from hookcli.table.names import is_operator
from hookcli.tensors.stats import resolve


def finite_output(step: StepView) -> Iterator[str]:
    """Say that the model's outputs were finite, and how large; nothing if they were not measured."""
    of_model = [stats for row in rows_of(step, "output") if row.fqn == "" and (stats := row.stats)]
    if of_model and all(s.finite == s.numel for s in of_model):
        largest = max((max(abs(s.min), abs(s.max)) for s in of_model if s.numel), default=0.0)
        yield f"the model's output was finite, up to {number(largest)}: it begins in the loss function"


def rows_of(step: StepView, what: str) -> list[Row]:
    """All rows of outputs, or of their gradients, so far. Waits for an accelerator."""
    sorts = (sort for sort in step.measured() if sort.what == what and sort.probe.name in ("activations", "grads"))
    seen = [one for sort in sorts for one in sort.seen]
    stats = resolve([figures for _, figures in seen])
    return [Row(values, one) for (values, _), one in zip(seen, stats, strict=True)]


def first_bad(rows: Sequence[Row], begin: int, what: str) -> int | None:
    """The number of the first bad row from `begin` on; of an output, of the first of the operators that led to it."""
    bad = [number for number in range(begin, len(rows)) if is_lost(rows[number])]
    if what == "output":
        modules = [number for number in bad if not is_operator(rows[number].fqn)]
        bad = [number for number in modules if not _masks(rows[number])]
        bad = bad or [number for number in modules if not rows[number].fqn]  # the model returns infinities
    if not bad or what != "output":
        return bad[0] if bad else None
    first = number = bad[0]
    while number and is_operator(rows[number - 1].fqn) and is_lost(rows[number - 1]):
        number -= 1
        first = first if _masks(rows[number]) else number
    return first


def _masks(row: Row) -> bool:
    return bool(row.stats and row.stats.masks)
