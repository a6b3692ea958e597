"""Compares the rows of `hookcli activations --ops` with the operations that TorchLens sees in the same forward.

TorchLens wraps PyTorch's functions by another way than hookcli does, and finds names, modules, lines and tensors by
itself. So each of its operations must be a row of the same call of the same module, with the same shape, figures and
line; or have one of `REASONS`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.hooks.operators.functions import plain_name
from hookcli.hooks.origin import shown_path
from hookcli.table.names import is_within

REASONS = {
    "module": "Work of a layer",
    "function": "Part of a function",
    "same": "Argument unchanged",
    "mapped": "`vmap` itself",
    "read": "Reads a value",
    "whole": "Inside a part that runs whole",
}
"""Headings for the reasons why an operation has no row, in the order of the page's list."""
_CLOSE = 1e-4
_WHOLE = re.compile("compiled|TorchScript|fused")
_SAME = {"mod": "remainder"}  # one function under two names
Place = tuple[str, int]


@dataclass
class Operation:
    """An operation of TorchLens' list. `lines`: the frames of the model's forward, the outermost first."""

    name: str
    place: Place
    shape: list[int]
    figures: list[float]
    lines: list[tuple[str, str]]
    unchanged: bool

    @property
    def line(self) -> str:
        """The innermost line outside of PyTorch, or at least in it."""
        lines = [line for line, _ in reversed(self.lines)]
        return next((line for line in lines if not line.startswith("torch/")), lines[0] if lines else "")

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, str(self.shape), self.line


@dataclass
class Compared:
    """Count the operations that are rows, that have a reason, and that have neither; list rows whose figures differ."""

    operations: int = 0
    rows: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    more: Counter[str] = field(default_factory=Counter)


def compared(report: dict[str, Any], model: nn.Module, operations: Sequence[Operation]) -> Compared:
    """Find the row or the reason of each operation."""
    found = Compared(len(operations))
    rows = _by_place(row for row in report["rows"] if "source" in row and ":" in row["fqn"])
    modules = {(row["fqn"], row["call"]) for row in report["rows"]}
    whole = {entry["fqn"] for entry in report["skipped"] if _WHOLE.search(entry["reason"])}
    for place, listed in _by_place_of(operations).items():
        own = rows.pop(place, [])
        left = _matched(listed, own, found)
        for operation in left:
            reason = _reason(operation, own, model, modules, whole)
            if reason:
                found.reasons[reason] += 1
            else:
                found.faults.append(f"{place[0]}:{operation.name} {operation.shape} {operation.line}")
    found.more.update(row["type"] for left_over in rows.values() for row in left_over)
    return found


def _matched(listed: list[Operation], rows: list[dict[str, Any]], found: Compared) -> list[Operation]:
    """Match one place's operations with its rows, in order, and return those without a row."""
    keys = [(row["type"], str(row["shape"]), row["source"]) for row in rows]
    blocks = SequenceMatcher(None, [o.key for o in listed], keys, autojunk=False).get_matching_blocks()
    pairs = {block.a + i: block.b + i for block in blocks for i in range(block.size)}
    taken = set(pairs.values())
    found.more.update(row["type"] for i, row in enumerate(rows) if i not in taken)
    for number, index in pairs.items():
        operation, row = listed[number], rows[index]
        found.rows += 1
        if fault := _difference(operation, row):
            found.faults.append(f"{row['fqn']}: {fault}")
    return [operation for number, operation in enumerate(listed) if number not in pairs]


def _difference(operation: Operation, row: dict[str, Any]) -> str | None:
    own = [float(row[key]) if row.get(key) is not None else math.nan for key in ("mean", "min", "max")]
    scale = max(map(abs, operation.figures))
    near = (abs(a - b) <= _CLOSE * scale or str(a) == str(b) for a, b in zip(operation.figures, own, strict=True))
    if all(near) or "empty" in operation.name:  # whose values are left to chance
        return None
    return f"figures {own}, not {operation.figures}"


def _reason(
    operation: Operation, rows: list[dict[str, Any]], model: nn.Module, modules: set[Place], whole: set[str]
) -> str | None:
    fqn = operation.place[0]
    module = model.get_submodule(fqn)
    if type(module).__module__.startswith("torch.nn.") and operation.place in modules:
        return "module"
    called = {plain_name(name) for line, name in operation.lines if line.startswith("torch/")}
    here = [row["type"] for row in rows if row["source"] == operation.line]
    if called.intersection(here):
        return "function"
    if "contains" in called:
        return "read"
    if operation.name == "vmap" and here:
        return "mapped"
    if operation.unchanged:
        return "same"
    return "whole" if any(is_within(fqn, part) for part in whole) else None


def _by_place(rows: Any) -> dict[Place, list[dict[str, Any]]]:
    places: dict[Place, list[dict[str, Any]]] = {}
    for row in rows:
        places.setdefault((row["fqn"].rpartition(":")[0], row["call"]), []).append(row)
    return places


def _by_place_of(operations: Sequence[Operation]) -> dict[Place, list[Operation]]:
    places: dict[Place, list[Operation]] = {}
    for operation in operations:
        places.setdefault(operation.place, []).append(operation)
    return places


# TorchLens' side.


def operations_of(model: nn.Module, inputs: Any) -> list[Operation]:
    """TorchLens' list for one forward, without inputs, outputs, parameters and buffers, which no function made.

    It leaves PyTorch's functions wrapped, so this comes last in a process.
    """
    import torchlens
    from torchlens.options import CaptureOptions

    options = CaptureOptions(keep_orphans=True, random_seed=0)
    args, kwargs = ([], inputs) if isinstance(inputs, dict) else (inputs, {})
    trace = torchlens.trace(model, list(args) if isinstance(args, (list, tuple)) else [args], kwargs, capture=options)
    listed = [_operation(op) for op in trace.ops if op.is_compute_op]
    _rename(listed, model)
    around = _common_end([operation.lines for operation in listed])
    for operation in listed:
        del operation.lines[len(operation.lines) - around :]
    return listed


def _rename(listed: Sequence[Operation], model: nn.Module) -> None:
    """Give a module that has several names its first one, with calls counted over all of them, as hookcli does."""
    first: dict[nn.Module, str] = {}
    for fqn, module in model.named_modules(remove_duplicate=False):
        first.setdefault(module, fqn)
    calls: dict[str, dict[Place, int]] = {}
    for operation in listed:
        fqn = first[model.get_submodule(operation.place[0])]
        own = calls.setdefault(fqn, {})
        operation.place = fqn, own.setdefault(operation.place, len(own))


def _common_end(lines: list[list[tuple[str, str]]]) -> int:
    """Count the last frames that all stacks share: TorchLens puts the frames around the model's forward there."""
    return sum(1 for _ in takewhile(lambda frames: len(set(frames)) == 1, zip(*map(reversed, lines), strict=False)))


def _operation(op: Any) -> Operation:
    fqn, _, call = (op.modules[-1] if op.modules else ":1").rpartition(":")
    context = [c for c in op.code_context or () if Path(c.file) != Path(__file__)]
    frames = [(f"{shown_path(c.file)}:{c.line_number}", c.func_name) for c in context]
    out = op.out
    name = plain_name(op.func_name)
    unchanged = name == "identity" or (op.is_inplace and not name.endswith("_") and name != "setitem")
    place = fqn, int(call) - 1
    return Operation(_SAME.get(name, name), place, list(out.shape), _figures(out), frames, unchanged)


def _figures(x: Tensor) -> list[float]:
    """Mean, minimum and maximum of the finite elements, in float64."""
    x = x.detach()
    x = (x.to_dense() if x.layout is not torch.strided else x).flatten()
    values = (x.abs() if x.is_complex() else x).double()
    values = values[torch.isfinite(values)]
    return [float(f(values)) for f in (torch.mean, torch.amin, torch.amax)] if len(values) else [math.nan] * 3
