"""Compares pairs of tensors of two runs, reduced at once, and makes rows of them at the end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from hookcli.diff import verdict
from hookcli.diff.align import Alignment, NamedPart
from hookcli.diff.lone_operators import both_sources
from hookcli.diff.merged_pairs import Compared, MergedPairs
from hookcli.diff.tensors import MeasuredPair, tensor_rows
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep.lockstep import A, B
from hookcli.engine.lockstep.module_tensors import GRAD, GRAD_OUTPUT, OUTPUT, ModuleTensors, only, place
from hookcli.hooks.events import HookEvent
from hookcli.probes.shared.unmeasured import UNINITIALISED
from hookcli.report import Row, Skipped
from hookcli.report.discrepancy import Discrepancy
from hookcli.report.formatting import shape
from hookcli.tensors import tree
from hookcli.tensors.chunks import PendingFigures, cause
from hookcli.tensors.distance import SameBits, resolve
from hookcli.tensors.distance import compare as compare_tensors
from hookcli.tensors.torch_private import version
from hookcli.tensors.unchanged import glimpse
from hookcli.tensors.weak import WeakIds

_PHASES = ("input", OUTPUT, GRAD_OUTPUT, "grad_input", GRAD)
_NOTHING = torch.empty(0)  # stands for a tensor that is not read any more


@dataclass(slots=True)
class _Pair:
    """A future row: reduced figures, or why there are none."""

    values: dict[str, Any]
    order: tuple[int, int, int, float]
    dtypes: tuple[str, str] = ("", "")
    pending: PendingFigures | None = None
    received: list[_Pair] = field(default_factory=list)


@dataclass(slots=True)
class _Compared:
    """The state of two tensors when they were compared."""

    state: tuple[Any, Any]
    other: ref[Tensor]
    other_state: tuple[Any, Any]
    pair: _Pair


def _state(x: Tensor) -> tuple[Any, Any]:
    return (None, None) if x.is_inference() else (version(x), glimpse(x))


class TensorPairs:
    """Collects the tensors of both sides; `compare`, `unmatched` and `keep` are called by Lockstep.

    Errors are followed through the modules of the side `followed`, whose tensors are live.
    """

    def __init__(self, alignment: Alignment, followed: int = A) -> None:
        self.alignment = alignment
        self._followed = followed
        self._pairs: list[_Pair] = []
        self._of: WeakIds[Tensor, _Compared] = WeakIds()  # by the followed side's tensor
        self._received: dict[tuple[str, int], list[_Pair]] = {}
        self._unmatched: tuple[dict[Hashable, ModuleTensors], dict[Hashable, ModuleTensors]] = ({}, {})
        self._latest = 0
        self._arrivals: dict[str, int] = {}
        self._skipped: list[Skipped] = []
        self._merged = MergedPairs()
        self.same_bits = SameBits()

    def key(self, side: int, seen: ModuleTensors) -> Hashable | None:
        """The key by which both sides know the tensors; None if the other side has no such module or operator."""
        name = self.alignment.name_in(B if side == A else A, seen.fqn)
        if name is None:
            self.note_unmatched(side, seen, {"change": "removed" if side == A else "added"})
            return None
        path = seen.tensors[0][0] if seen.kind == GRAD_OUTPUT else ""
        return seen.kind, seen.fqn if side == A else name, seen.call, path

    def compare(self, key: Hashable, a: ModuleTensors, b: ModuleTensors) -> None:
        """Compare the tensors that both sides have reached."""
        self._latest = a.index
        if a.uninitialised or b.uninitialised:
            self._skipped += [Skipped(a.fqn, UNINITIALISED, path) for path, _ in a.tensors]
            return
        theirs = dict(b.tensors)
        for path, x in a.tensors:
            if path in theirs:
                self._compare(a, b, path, x, theirs[path])
        for side, seen, others in ((A, a, theirs), (B, b, dict(a.tensors))):
            rest = [(path, x) for path, x in seen.tensors if path not in others]
            if rest:
                self.note_unmatched(side, replace(seen, tensors=rest), only(side, "returned"))

    def unmatched(self, side: int, key: Hashable, seen: ModuleTensors) -> None:
        """Note tensors that only one side has reached, or much earlier or later than the other."""
        self._unmatched[side][key] = replace(seen, tensors=[(path, _NOTHING) for path, _ in seen.tensors])

    def keep(self, seen: ModuleTensors) -> ModuleTensors:
        """A copy that survives the callback."""
        return replace(seen, tensors=[(path, x.detach().clone()) for path, x in seen.tensors])

    def receive(self, event: HookEvent) -> None:
        """Note which pairs the arguments of a module or operator of the followed side belong to."""
        known = [self._known(x) for _, x in tree.arguments(event.args, dict(event.kwargs))]
        self._received[event.fqn, event.call] = [pair for pair in known if pair]

    def arrived(self, event: HookEvent) -> None:
        """Note the order in which the gradients of A's parameters arrive."""
        self._arrivals.setdefault(event.fqn, event.index)

    def parameters(self, a: nn.Module, b: nn.Module) -> None:
        """Compare the gradients that both models' parameters hold."""
        theirs = dict(b.named_parameters())
        for fqn, p in a.named_parameters():
            other = theirs.get(self.alignment.counterpart(fqn))
            if other is None:
                continue
            kind = type(a.get_submodule(fqn.rpartition(".")[0])).__name__
            seen = ModuleTensors(GRAD, fqn, kind, 0, self._arrivals.get(fqn, 0), [])
            if p.grad is not None and other.grad is not None:
                self._compare(seen, seen, "", p.grad, other.grad)
            elif p.grad is None and other.grad is None:
                self._skipped.append(Skipped(fqn, "no gradient reached it on either side"))
            else:
                self.note_unmatched(A, seen, only(A if other.grad is None else B, "has a gradient"))

    def rows(self, tolerance: Tolerance, complete: bool) -> list[Row]:
        """The rows, in the order in which A's modules were entered, then as gradients arrived.

        If a side failed, tensors that the other waited with are no difference, and rows of tensors on one side alone
        are left out: a table of these would look like a comparison that was never made.
        """
        found = self._merged.found()  # whole batches alone, if there are several
        if complete:
            self._settle()
        else:
            found = [item for item in found if isinstance(item, MeasuredPair) or not _one_sided(item)]
            self._pairs = [pair for pair in self._pairs if not _one_sided(pair.values)]
        found = found or self._found()
        rows = iter(tensor_rows([item for item in found if isinstance(item, MeasuredPair)], tolerance))
        return [next(rows) if isinstance(item, MeasuredPair) else Row(item) for item in found]

    def batch_ended(self) -> None:
        """Merge the pairs of a batch with those of the batches before."""
        self._settle()
        self._merged.add(self._found())
        self._pairs.clear()
        self._received.clear()

    def _found(self) -> list[Compared]:
        """The compared tensors, in order."""
        reduced = [pair for pair in self._pairs if pair.pending is not None]
        resolved = resolve([pair.pending for pair in reduced if pair.pending is not None])
        figures = dict(zip(map(id, reduced), resolved, strict=True))
        measured = {
            id(pair): MeasuredPair(pair.values, figures[id(pair)], pair.dtypes, list(_figures(pair.received, figures)))
            for pair in reduced
        }
        return [measured.get(id(pair), pair.values) for pair in sorted(self._pairs, key=lambda pair: pair.order)]

    def skipped(self) -> list[Skipped]:
        """Tensors that could not be compared, with reasons."""
        return list(dict.fromkeys(self._skipped))

    def _compare(self, a: ModuleTensors, b: ModuleTensors, path: str, x: Tensor, y: Tensor) -> None:
        dtypes = tree.dtype_text(x), tree.dtype_text(y)
        values = {**place(a, path), **both_sources(a.source, b.source), "shape": tree.shape_of(x)}
        values["dtype"] = " → ".join(dict.fromkeys(dtypes))
        changed = verdict.change(NamedPart(a.fqn, a.type), NamedPart(b.fqn, b.type))
        pair = _Pair(values | ({"change": changed} if changed else {}), self._order(a), dtypes)
        seen, own, other = (a, x, y) if self._followed == A else (b, y, x)
        if a.kind == OUTPUT:
            pair.received = self._received.get((seen.fqn, seen.call), [])
        self._pairs.append(pair)
        again = self._known(own, other)
        try:
            if differs := _reshaped(x, y):
                pair.values |= {"differs": differs, "beyond": True}
                return
            pair.pending = again.pending if again else compare_tensors(x, y)
            if not again:
                self.same_bits.see(x, y)
        except Exception as error:  # a layout or dtype that PyTorch can't reduce is no reason to lose the run
            self._pairs.pop()
            self.same_bits.excluded = True
            reason = f"can't be compared ({values['dtype']}, {cause(error, x, y)})"
            self._skipped.append(Skipped(a.fqn, reason, path))
            return
        if not own.is_inference():
            self._of[own] = _Compared(_state(own), ref(other), _state(other), pair)

    def _known(self, x: Tensor, y: Tensor | None = None) -> _Pair | None:
        """The pair that a tensor of the followed side, unchanged since, was part of; with `y`, only one with that."""
        known = self._of.get(x)
        if known is None or known.state != _state(x):
            return None
        # Without a glimpse nothing tells whether a tensor was written to without a new version.
        if y is not None and (
            known.other() is not y or None in known.state + known.other_state or known.other_state != _state(y)
        ):
            return None
        return known.pair

    def _order(self, seen: ModuleTensors) -> tuple[int, int, int, float]:
        return seen.batch, seen.passed, _PHASES.index(seen.kind), seen.index

    def note_unmatched(self, side: int, seen: ModuleTensors, said: dict[str, Any]) -> None:
        """Add rows of one side; those of B come after A's latest."""
        for path in [path for path, _ in seen.tensors] or [""]:
            order = seen.batch, seen.passed, _PHASES.index(seen.kind), seen.index if side == A else self._latest + 0.5
            self._pairs.append(_Pair({**place(seen, path), **said}, order))

    def _settle(self) -> None:
        """Add rows of unmatched tensors; those unmatched on both sides came too far out of order."""
        for key in self._unmatched[A].keys() & self._unmatched[B].keys():
            seen = self._unmatched[A].pop(key)
            del self._unmatched[B][key]
            self.same_bits.excluded = True
            self._skipped.append(Skipped(seen.fqn, "the two sides call it in orders too different to compare"))
        for side in (A, B):
            for seen in self._unmatched[side].values():
                self.note_unmatched(side, seen, only(side, "called"))
            self._unmatched[side].clear()


def _reshaped(x: Tensor, y: Tensor) -> str:
    """Describe how the shapes differ; "" if they don't. Nested tensors differ if one of their items does."""
    if x.is_nested and y.is_nested and x.size(0) == y.size(0):
        items = enumerate(zip(x.detach().unbind(), y.detach().unbind(), strict=True))
        return next((f"item {number}: {said}" for number, pair in items if (said := _reshaped(*pair))), "")
    a, b = (shape(tree.shape_of(tensor)) for tensor in (x, y))
    return f"shape {a} → {b}" if a != b else ""


def _one_sided(values: Mapping[str, Any]) -> bool:
    return values.get("change") in ("added", "removed")


def _figures(pairs: list[_Pair], figures: dict[int, Discrepancy]) -> Iterator[Discrepancy]:
    return (figures[id(pair)] for pair in pairs if id(pair) in figures)
