"""What two runs have in common: pairs of tensors as they come by, reduced at once, and rows of them at the end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from hookcli.diff import verdict
from hookcli.diff.align import Alignment, NamedPart
from hookcli.diff.tensors import MeasuredPair, tensor_rows
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep.lockstep import A, B
from hookcli.hooks.events import HookEvent
from hookcli.report import Row, Skipped
from hookcli.report.discrepancy import Discrepancy
from hookcli.report.formatting import shape
from hookcli.tensors import tree
from hookcli.tensors.distance import Pending, compare, resolve
from hookcli.tensors.stats import glimpse
from hookcli.tensors.weak import WeakIds

OUTPUT, GRAD_OUTPUT, GRAD = "output", "grad_output", "grad"
_PHASES = (OUTPUT, GRAD_OUTPUT, GRAD)
_NOTHING = torch.empty(0)  # in the place of a tensor that nothing more will be read of


@dataclass(slots=True)
class Seen:
    """What one side comes by with: tensors, by path, of a call of a module. They are live until the callback ends."""

    kind: str
    fqn: str
    type: str
    call: int
    index: int
    tensors: list[tuple[str, Tensor]]


@dataclass(slots=True)
class _Pair:
    """A row to be: reduced figures, or why there are none."""

    values: dict[str, Any]
    order: tuple[int, float]
    dtypes: tuple[str, str] = ("", "")
    pending: Pending | None = None
    received: list[_Pair] = field(default_factory=list)


@dataclass(slots=True)
class _Met:
    """A pair of tensors as they were when they were compared."""

    state: tuple[Any, Any]
    other: ref[Tensor]
    other_state: tuple[Any, Any]
    pair: _Pair


def _state(x: Tensor) -> tuple[Any, Any]:
    return (None, None) if x.is_inference() else (x._version, glimpse(x))


class Meeting:
    """Takes what both sides come by with."""

    def __init__(self, alignment: Alignment) -> None:
        self._alignment = alignment
        self._pairs: list[_Pair] = []
        self._of: WeakIds[Tensor, _Met] = WeakIds()  # by A's tensor
        self._received: dict[tuple[str, int], list[_Pair]] = {}
        self._lone: tuple[dict[Hashable, Seen], dict[Hashable, Seen]] = ({}, {})
        self._latest = 0
        self._arrivals: dict[str, int] = {}
        self._skipped: list[Skipped] = []

    def key(self, side: int, seen: Seen) -> Hashable | None:
        """What the other side will know it by; None where the other has no such module."""
        names = self._alignment.in_b if side == A else self._alignment.in_a
        if seen.fqn not in names:
            self._note_lone(side, seen, {"change": "removed" if side == A else "added"})
            return None
        path = seen.tensors[0][0] if seen.kind == GRAD_OUTPUT else ""
        return seen.kind, seen.fqn if side == A else names[seen.fqn], seen.call, path

    def meet(self, key: Hashable, a: Seen, b: Seen) -> None:
        """Both have come by: compare their tensors."""
        self._latest = a.index
        theirs = dict(b.tensors)
        for path, x in a.tensors:
            if path in theirs:
                self._compare(a, b, path, x, theirs[path])
        for side, seen, others in ((A, a, theirs), (B, b, dict(a.tensors))):
            rest = [(path, x) for path, x in seen.tensors if path not in others]
            if rest:
                self._note_lone(side, replace(seen, tensors=rest), _only(side, "returned"))

    def alone(self, side: int, key: Hashable, seen: Seen) -> None:
        """One has come by with what the other did not, or too long before or after."""
        self._lone[side][key] = replace(seen, tensors=[(path, _NOTHING) for path, _ in seen.tensors])

    def keep(self, seen: Seen) -> Seen:
        """A copy that survives the callback."""
        return replace(seen, tensors=[(path, x.detach().clone()) for path, x in seen.tensors])

    def receive(self, event: HookEvent) -> None:
        """Note what is known of the tensors that a module of A is called with."""
        known = [self._known(x) for _, x in tree.arguments(event.args, dict(event.kwargs))]
        self._received[event.fqn, event.call] = [pair for pair in known if pair]

    def arrived(self, event: HookEvent) -> None:
        """Note the order in which the gradients of A's parameters arrive."""
        self._arrivals.setdefault(event.fqn, event.index)

    def parameters(self, a: nn.Module, b: nn.Module) -> None:
        """Compare the gradients that both models' parameters hold."""
        theirs = dict(b.named_parameters())
        for fqn, p in a.named_parameters():
            owner, _, name = fqn.rpartition(".")
            other = theirs.get(f"{self._alignment.in_b.get(owner, owner)}.{name}".lstrip("."))
            if other is None:
                continue
            kind = type(a.get_submodule(owner)).__name__
            seen = Seen(GRAD, fqn, kind, 0, self._arrivals.get(fqn, 0), [])
            if p.grad is not None and other.grad is not None:
                self._compare(seen, seen, "", p.grad, other.grad)
            elif p.grad is None and other.grad is None:
                self._skipped.append(Skipped(fqn, "no gradient reached it on either side"))
            else:
                self._note_lone(A, seen, _only(A if other.grad is None else B, "has a gradient"))

    def rows(self, tolerance: Tolerance, complete: bool) -> list[Row]:
        """What was compared, in the order in which A's modules were entered, then as gradients arrived.

        Where a side failed, what the other was waiting with is not a difference, and what one side alone has is left to
        the structures: a table of these would look like the comparison that there was not.
        """
        if complete:
            self._settle()
        else:
            self._pairs = [pair for pair in self._pairs if pair.values.get("change") not in ("added", "removed")]
        reduced = [pair for pair in self._pairs if pair.pending is not None]
        resolved = resolve([pair.pending for pair in reduced if pair.pending is not None])
        figures = dict(zip(map(id, reduced), resolved, strict=True))
        measured = [
            MeasuredPair(pair.values, figures[id(pair)], pair.dtypes, list(_figures(pair.received, figures)))
            for pair in reduced
        ]
        rows = dict(zip(map(id, reduced), tensor_rows(measured, tolerance), strict=True))
        ordered = sorted(self._pairs, key=lambda pair: pair.order)
        return [rows[id(pair)] if id(pair) in rows else Row(pair.values) for pair in ordered]

    def skipped(self) -> list[Skipped]:
        """What could not be compared."""
        return self._skipped

    def _compare(self, a: Seen, b: Seen, path: str, x: Tensor, y: Tensor) -> None:
        dtypes = tree.dtype_text(x), tree.dtype_text(y)
        values = {**_place(a, path), "shape": tree.shape_of(x), "dtype": " → ".join(dict.fromkeys(dtypes))}
        changed = verdict.change(NamedPart(a.fqn, a.type), NamedPart(b.fqn, b.type))
        pair = _Pair(values | ({"change": changed} if changed else {}), self._order(a), dtypes)
        if a.kind == OUTPUT:
            pair.received = self._received.get((a.fqn, a.call), [])
        self._pairs.append(pair)
        again = self._known(x, y)
        try:
            if differs := _reshaped(x, y):
                pair.values |= {"differs": differs, "beyond": True}
                return
            pair.pending = again.pending if again else compare(x, y)
        except Exception as error:  # a layout or dtype that PyTorch can't reduce is no reason to lose the run
            self._pairs.pop()
            reason = f"can't be compared ({values['dtype']}, {type(error).__name__})"
            self._skipped.append(Skipped(a.fqn, reason, path))
            return
        if not x.is_inference():
            self._of[x] = _Met(_state(x), ref(y), _state(y), pair)

    def _known(self, x: Tensor, y: Tensor | None = None) -> _Pair | None:
        """The pair that a tensor of A was part of, unchanged since; with `y`: with that tensor of B, unchanged too."""
        met = self._of.get(x)
        if met is None or met.state != _state(x):
            return None
        # Of a tensor without a glimpse nothing tells whether it was written to past its version.
        if y is not None and (
            met.other() is not y or None in met.state + met.other_state or met.other_state != _state(y)
        ):
            return None
        return met.pair

    def _order(self, seen: Seen) -> tuple[int, float]:
        return _PHASES.index(seen.kind), seen.index

    def _note_lone(self, side: int, seen: Seen, said: dict[str, Any]) -> None:
        """Of B alone: after what A did last."""
        phase, index = self._order(seen)
        for path in [path for path, _ in seen.tensors] or [""]:
            order = (phase, index if side == A else self._latest + 0.5)
            self._pairs.append(_Pair({**_place(seen, path), **said}, order))

    def _settle(self) -> None:
        """What was left alone: on both sides, it came by too far out of order."""
        for key in self._lone[A].keys() & self._lone[B].keys():
            seen = self._lone[A].pop(key)
            del self._lone[B][key]
            self._skipped.append(Skipped(seen.fqn, "the sides come by it in orders too different to compare it"))
        for side in (A, B):
            for seen in self._lone[side].values():
                self._note_lone(side, seen, _only(side, "there"))
            self._lone[side].clear()


def _reshaped(x: Tensor, y: Tensor) -> str:
    """How the shapes differ, in words; "" where they don't. Nested tensors differ where an item of theirs does."""
    if x.is_nested and y.is_nested and x.size(0) == y.size(0):
        items = enumerate(zip(x.detach().unbind(), y.detach().unbind(), strict=True))
        return next((f"item {number}: {said}" for number, pair in items if (said := _reshaped(*pair))), "")
    a, b = (shape(tree.shape_of(tensor)) for tensor in (x, y))
    return f"shape {a} → {b}" if a != b else ""


def _only(side: int, what: str) -> dict[str, Any]:
    return {"differs": f"{what} in {'AB'[side]} only", "beyond": True}


def _place(seen: Seen, path: str) -> dict[str, Any]:
    return {
        "fqn": seen.fqn,
        "type": seen.type,
        "kind": seen.kind,
        "call": seen.call,
        "index": seen.index,
        "path": path,
    }


def _figures(pairs: list[_Pair], figures: dict[int, Discrepancy]) -> Iterator[Discrepancy]:
    return (figures[id(pair)] for pair in pairs if id(pair) in figures)
