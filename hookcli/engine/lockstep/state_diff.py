"""Compares the parameters, buffers and settings of two models at rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.diff.align import Alignment
from hookcli.diff.origin import WEIGHT
from hookcli.diff.settings import ChangedSettings, changes_of, why_idle
from hookcli.diff.tensor_rows import MeasuredPair, apart_line, tensor_rows
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep.module_tensors import OUTPUT, incomparable, reshaped
from hookcli.hooks.parts import Select
from hookcli.probes.parameters import settings_of
from hookcli.table import Row, Skipped
from hookcli.tensors import tree
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.distance import SameBits, compare, resolve

_MANY = 8  # beyond tolerance: for more, as after another initialization, one line says more than their rows


class StateDiff:
    """Compares parameters and buffers of modules that both models have, as it is made. `select` narrows A's modules."""

    def __init__(self, a: nn.Module, b: nn.Module, alignment: Alignment, select: Select | None = None) -> None:
        self.compared = 0
        self._same_bits = SameBits()
        self.skipped: list[Skipped] = []
        self._unlike: list[Row] = []
        self._pending: list[tuple[dict[str, object], tuple[str, str], PendingFigures]] = []
        ours, theirs = (dict(_tensors(model, remove_duplicate=False)) for model in (a, b))
        for fqn, x in _tensors(a):
            owner = fqn.rpartition(".")[0]
            if owner in alignment.in_b and (select is None or select(owner, a.get_submodule(owner))):
                self._take(fqn, x, theirs.get(alignment.counterpart(fqn)))
        for fqn, x in _tensors(b):
            owner, _, name = fqn.rpartition(".")
            there = alignment.in_a.get(owner)
            if there is None or f"{there}.{name}".lstrip(".") in ours:
                continue
            if select is None or select(there, a.get_submodule(there)):
                self._unlike.append(Row(_place(fqn, x) | {"change": "added"}))

    def rows(self, tolerance: Tolerance) -> list[Row]:
        """A row per tensor that differs or one side lacks; `aside` (not for people) within tolerance, or if many."""
        distances = resolve([pending for *_, pending in self._pending])
        pairs = [
            MeasuredPair(values, distance, dtypes)
            for (values, dtypes, _), distance in zip(self._pending, distances, strict=True)
            if distance.error_l2 or distance.nonfinite
        ]
        rows = [*self._unlike, *tensor_rows(pairs, tolerance)]
        many = sum(bool(row.get("beyond")) for row in rows) > _MANY
        shown = [not many and bool(row.get("beyond") or row.get("change")) for row in rows]
        return [row if show else Row({**row.values, "aside": True}) for row, show in zip(rows, shown, strict=True)]

    @property
    def identical(self) -> bool:
        """True if all parameters and buffers have counterparts with the same bits."""
        return bool(self._same_bits) and not (self._unlike or self.skipped)

    def _take(self, fqn: str, x: Tensor, y: Tensor | None) -> None:
        values = _place(fqn, x)
        if y is None:
            self._unlike.append(Row(values | {"change": "removed"}))
            return
        if is_lazy(x) or is_lazy(y):
            return
        self.compared += 1
        dtypes = tree.dtype_text(x), tree.dtype_text(y)
        values |= {"shape": tree.shape_of(x), "dtype": " → ".join(dict.fromkeys(dtypes))}
        if difference := reshaped(x, y):
            self._unlike.append(Row(values | {"differs": difference, "beyond": True}))
            return
        # Tensors that are surely equal need no exact comparison; one with NaN is not equal to itself.
        alike = x.device == y.device and x.dtype == y.dtype and tree.is_plain(x) and tree.is_plain(y)
        try:
            self._same_bits.see(x, y)
            equal = alike and torch.equal(x, y)
            pending = None if equal else compare(x, y)
        except Exception as error:
            self.compared -= 1
            self.skipped.append(incomparable(error, x, y, fqn))
            return
        if pending is not None:
            self._pending.append((values, dtypes, pending))


def with_state_rows(rows: Sequence[Row], weights: Sequence[Row]) -> list[Row]:
    """The rows, each module's first followed by its weights; weights of modules without a row come last."""
    by_owner: dict[str, list[Row]] = {}
    for row in weights:
        by_owner.setdefault(row.fqn.rpartition(".")[0], []).append(row)
    merged: list[Row] = []
    for row in rows:
        merged += [row, *(by_owner.pop(row.fqn, []) if row.get("kind") == OUTPUT else [])]
    return merged + [row for group in by_owner.values() for row in group]


def _tensors(model: nn.Module, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=remove_duplicate)
    yield from model.named_buffers(remove_duplicate=remove_duplicate)


def _place(fqn: str, x: Tensor) -> dict[str, object]:
    kind = "Parameter" if isinstance(x, nn.Parameter) else "Buffer"
    return {"fqn": fqn, "type": kind, "kind": WEIGHT, "call": 0, "index": 0, "path": ""}


def weights_line(rows: Sequence[Row], compared: int) -> str:
    """A line on the parameters and buffers: `compared` in number, of which `rows` differ; "" if there are none."""
    differing = [row for row in rows if row.get("change") not in ("added", "removed")]
    if not differing:
        return f"{compared:,} parameters and buffers equal" if compared else ""
    return apart_line(differing, f"{compared:,} parameters and buffers")


def settings_diff(
    a: nn.Module, b: nn.Module, alignment: Alignment, select: Select | None = None, *, backward: bool = False
) -> list[ChangedSettings]:
    """The settings that differ in modules of one type that have any. `select` narrows A's modules."""
    changed: list[ChangedSettings] = []
    for ours, theirs in alignment.pairs:
        module = a.get_submodule(ours.fqn)
        if ours.type == theirs.type and (select is None or select(ours.fqn, module)):
            other = b.get_submodule(theirs.fqn)
            old, new = (settings_of(side, floats=True) for side in (module, other))
            changes = changes_of(old, new) if old and new else {}
            trains = module.training or other.training
            idle = {name: why_idle(ours.type, name, trains=trains, backward=backward) for name in changes}
            changed += [ChangedSettings(ours.fqn, ours.type, changes, idle)] if changes else []
    return changed
