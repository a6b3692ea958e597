"""Compares pairs of tensors of two runs, reduced at once, and makes rows of them at the end."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from hookcli.diff import verdict
from hookcli.diff.align import Alignment, NamedPart
from hookcli.diff.origin import both_sources
from hookcli.diff.tensor_rows import Compared, MeasuredPair, MergedPairs, tensor_rows
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep.lockstep import A, B
from hookcli.engine.lockstep.module_tensors import (
    GRAD,
    GRAD_OUTPUT,
    OUTPUT,
    RECEIVED,
    Inputs,
    KnownPairs,
    ModuleTensors,
    Pair,
    incomparable,
    only,
    place,
    reshaped,
)
from hookcli.hooks.events import HookEvent
from hookcli.probes.shared.unmeasured import UNINITIALISED
from hookcli.table import Row, Skipped
from hookcli.table.discrepancy import Discrepancy
from hookcli.tensors import tree
from hookcli.tensors.distance import SameBits, resolve
from hookcli.tensors.distance import compare as compare_tensors

_PHASES = ("input", OUTPUT, GRAD_OUTPUT, "grad_input", GRAD)
_NOTHING = torch.empty(0)  # stands for a tensor that is not read any more


class TensorPairs:
    """Collects the tensors of both sides; `compare`, `unmatched` and `keep` are called by Lockstep.

    `followed` and `constants`: see KnownPairs.
    """

    def __init__(self, alignment: Alignment, followed: int = A, constants: Iterable[Tensor] = ()) -> None:
        self.alignment = alignment
        self._followed = followed
        self._pairs: list[Pair] = []
        self._unmatched: tuple[dict[Hashable, ModuleTensors], dict[Hashable, ModuleTensors]] = ({}, {})
        self._latest: dict[tuple[int, int, int], float] = {}
        self._arrivals: dict[str, int] = {}
        self._skipped: list[Skipped] = []
        self.known = KnownPairs(followed, constants, self._skipped)
        self._merged = MergedPairs()
        self.same_bits = SameBits()

    def key(self, side: int, seen: ModuleTensors) -> Hashable | None:
        """The key by which both sides know the tensors; None if they are not compared."""
        if seen.uninitialised:
            self._skipped += [Skipped(seen.fqn, UNINITIALISED, path) for path, _ in seen.tensors]
            return None
        name = self.alignment.name_in(B if side == A else A, seen.fqn)
        if name is None:
            if seen.kind != RECEIVED:
                self.note_unmatched(side, seen, {"change": "removed" if side == A else "added"})
            return None
        path = seen.tensors[0][0] if seen.kind == GRAD_OUTPUT else ""
        return seen.kind, seen.fqn if side == A else name, seen.call, path

    def compare(self, key: Hashable, a: ModuleTensors, b: ModuleTensors) -> None:
        """Compare the tensors that both sides have reached; a module of B will receive what A's received."""
        if a.kind == RECEIVED:
            self.known.feed(a, b)
            return
        phase = self._order(a)[:3]
        self._latest[phase] = max(self._latest.get(phase, 0), a.index)  # a container returns after its parts
        theirs = dict(b.tensors)
        inputs = self.known.inputs(a, b) if a.kind == OUTPUT else ((), False)
        for path, x in a.tensors:
            if path in theirs:
                self._compare(a, b, path, (x, theirs[path]), inputs)
        for side, seen, others in ((A, a, theirs), (B, b, dict(a.tensors))):
            rest = [(path, x) for path, x in seen.tensors if path not in others]
            if rest:
                self.note_unmatched(side, replace(seen, tensors=rest), only(side, "returned"))

    def unmatched(self, side: int, key: Hashable, seen: ModuleTensors) -> None:
        """Note tensors that only one side has reached, or much earlier or later than the other."""
        if seen.kind == RECEIVED:
            return
        self._unmatched[side][key] = replace(seen, tensors=[(path, _NOTHING) for path, _ in seen.tensors], received=[])

    def keep(self, seen: ModuleTensors) -> ModuleTensors:
        """A copy that survives the callback."""
        return replace(seen, tensors=[(path, x.detach().clone()) for path, x in seen.tensors], received=[])

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
                self._compare(seen, seen, "", (p.grad, other.grad))
            elif p.grad is None and other.grad is None:
                self._skipped.append(Skipped(fqn, "no gradient reached it on either side"))
            else:
                self.note_unmatched(A, seen, only(A if other.grad is None else B, "has a gradient"))

    def rows(self, tolerance: Tolerance, complete: bool) -> list[Row]:
        """The rows, in the order in which A's modules were entered, then as gradients arrived.

        If a side failed, tensors that the other waited with are not a difference, and rows of tensors on one side alone
        are left out: a table of these would look like a comparison that was never made.
        """
        items = self._merged.pairs()  # whole batches alone, if there are several
        if complete:
            self._settle()
        else:
            items = [item for item in items if isinstance(item, MeasuredPair) or not _one_sided(item)]
            self._pairs = [pair for pair in self._pairs if not _one_sided(pair.values)]
        items = items or self._found()
        rows = iter(tensor_rows([item for item in items if isinstance(item, MeasuredPair)], tolerance))
        return [next(rows) if isinstance(item, MeasuredPair) else Row(item) for item in items]

    def batch_ended(self) -> None:
        """Merge the pairs of a batch with the pairs of the batches before."""
        self._settle()
        self._merged.add(self._found())
        self._pairs.clear()
        self.known.batch_ended()

    def _found(self) -> list[Compared]:
        """The compared tensors, in order."""
        every = {id(pair): pair for result in self._pairs for pair in (result, *result.received)}
        reduced = [pair for pair in every.values() if pair.pending is not None]
        resolved = resolve([pair.pending for pair in reduced if pair.pending is not None])
        figures = dict(zip(map(id, reduced), resolved, strict=True))
        measured = {
            id(pair): MeasuredPair(
                pair.values, figures[id(pair)], pair.dtypes, list(_figures(pair.received, figures)), pair.complete
            )
            for pair in reduced
            if pair.values
        }
        return [measured.get(id(pair), pair.values) for pair in sorted(self._pairs, key=lambda pair: pair.order)]

    def skipped(self) -> list[Skipped]:
        """Tensors that could not be compared, with reasons."""
        return list(dict.fromkeys(self._skipped))

    def _compare(
        self, a: ModuleTensors, b: ModuleTensors, path: str, both: tuple[Tensor, Tensor], inputs: Inputs = ((), False)
    ) -> None:
        x, y = both
        dtypes = tree.dtype_text(x), tree.dtype_text(y)
        values = {**place(a, path), **both_sources(a.source, b.source), "shape": tree.shape_of(x)}
        values["dtype"] = " → ".join(dict.fromkeys(dtypes))
        changed = verdict.change(NamedPart(a.fqn, a.type), NamedPart(b.fqn, b.type))
        pair = Pair(values | ({"change": changed} if changed else {}), self._order(a), dtypes, None, *inputs)
        if any("differs" in argument.values for argument in pair.received):
            pair.values["received"] = "differ"
        self._pairs.append(pair)
        followed, other = (x, y) if self._followed == A else (y, x)
        again = self.known.of(followed, other)
        try:
            if differs := reshaped(x, y):
                pair.values |= {"differs": differs, "beyond": True}
                return
            pair.pending = again.pending if again else compare_tensors(x, y)
            if not (again and again.values):  # only results are seen, not arguments
                self.same_bits.see(x, y)
        except Exception as error:
            self._pairs.pop()
            self.same_bits.excluded = True
            self._skipped.append(incomparable(error, x, y, a.fqn, path))
            return
        self.known.remember(followed, other, pair)

    def _order(self, seen: ModuleTensors) -> tuple[int, int, int, float]:
        return seen.batch, seen.passed, _PHASES.index(seen.kind), seen.index

    def note_unmatched(self, side: int, seen: ModuleTensors, values: dict[str, object]) -> None:
        """Add rows of one side; rows of B come after A's latest."""
        order = self._order(seen)
        if side == B:
            order = *order[:3], self._latest.get(order[:3], -1) + 0.5
        for path in [path for path, _ in seen.tensors] or [""]:
            self._pairs.append(Pair({**place(seen, path), **values}, order))

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


def _one_sided(values: Mapping[str, object]) -> bool:
    return values.get("change") in ("added", "removed")


def _figures(pairs: Sequence[Pair], figures: dict[int, Discrepancy]) -> Iterator[Discrepancy]:
    return (figures[id(pair)] for pair in pairs if id(pair) in figures)
