"""The tensors of a call on one side of a comparison, and the pairs of tensors that were compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from hookcli.engine.lockstep.lockstep import A, B
from hookcli.hooks.events import HookEvent
from hookcli.hooks.tensor_origins import version_of
from hookcli.table import Skipped
from hookcli.table.formatting import shape
from hookcli.tensors import tree
from hookcli.tensors.chunks import PendingFigures, cause
from hookcli.tensors.distance import compare as compare_tensors
from hookcli.tensors.weak import WeakIds, glimpse

OUTPUT, GRAD_OUTPUT, GRAD = "output", "grad_output", "grad"
RECEIVED = "received"
"""The kind of what a module is about to receive, where B gets what A received."""


@dataclass(slots=True)
class ModuleTensors:
    """Tensors of a call of a module or operator on one side, by path. They are live until the callback ends."""

    kind: str
    fqn: str
    type: str
    call: int
    index: int
    tensors: list[tuple[str, Tensor]]
    batch: int = 0
    passed: int = 0
    """The number of the pass."""
    source: str = ""
    """An operator's line in the program."""
    received: list[tuple[str, Tensor]] = field(default_factory=list)
    """The arguments of the call, where they are known."""
    uninitialised: bool = False
    """An operator returned memory that was not all written yet."""


def of_event(event: HookEvent, kind: str, tensors: list[tuple[str, Tensor]]) -> ModuleTensors:
    """The tensors of the call that an event is about."""
    name = event.operator.name if event.operator else type(event.module).__name__
    seen = ModuleTensors(kind, event.fqn, name, event.call, event.index, tensors)
    if kind == OUTPUT:
        seen.received = list(tree.arguments(event.args, event.kwargs))
    if event.operator:
        seen.source = event.operator.source
        seen.uninitialised = kind == OUTPUT and event.operator.uninitialised
    return seen


def only(side: int, what: str) -> dict[str, Any]:
    """The values of a row of tensors that one side alone has, beside their place."""
    return {"differs": f"{what} in {'AB'[side]} only", "beyond": True}


def place(seen: ModuleTensors, path: str) -> dict[str, object]:
    """The values of a row that say where one of the tensors belongs."""
    return {
        "fqn": seen.fqn,
        "type": seen.type,
        "kind": seen.kind,
        "call": seen.call,
        "index": seen.index,
        "path": path,
        **({"source": seen.source} if seen.source else {}),
        **{name: number for name, number in (("batch", seen.batch), ("pass", seen.passed)) if number},
    }


_NOWHERE = (0, 0, 0, 0.0)


@dataclass(slots=True)
class Pair:
    """A future row: reduced figures, or why there are none."""

    values: dict[str, object]
    order: tuple[int, int, int, float]
    dtypes: tuple[str, str] = ("", "")
    pending: PendingFigures | None = None
    received: Sequence[Pair] = ()
    complete: bool = False
    """All that was received is known."""


@dataclass(slots=True)
class _Compared:
    """The state of two tensors when they were compared."""

    state: tuple[object, object]
    other: ref[Tensor]
    other_state: tuple[object, object]
    pair: Pair


Inputs = tuple[Sequence[Pair], bool]
"""The pairs of a call's arguments, and True if these are all."""
_Received = tuple[int, Pair | None]
"""The version of an argument before the call, and the pair that it belonged to."""


class KnownPairs:
    """Follows errors through the modules of the side `followed`, whose tensors are live.

    `constants`: parameters and buffers, which are not inputs of an operator. `skipped` gets arguments that can't be
    compared.
    """

    def __init__(self, followed: int, constants: Iterable[Tensor], skipped: list[Skipped]) -> None:
        self._followed, self._skipped = followed, skipped
        self._constants = {id(x) for x in constants}
        self._of: WeakIds[Tensor, _Compared] = WeakIds()  # by the followed side's tensor
        self._received: dict[tuple[int, str, int], dict[str, _Received]] = {}

    def batch_ended(self) -> None:
        """Forget what the calls of a batch received."""
        self._received.clear()

    def feed(self, a: ModuleTensors, b: ModuleTensors) -> None:
        """Write what a module of A received into what B's is to receive, which keeps its dtype and its views.

        Raises RuntimeError for a tensor that can't be written to.
        """
        theirs = dict(b.tensors)
        for path, x in a.tensors:
            y = theirs.get(path)
            if y is None or id(y) in self._constants or reshaped(x, y) or torch.equal(x.to(y), y):
                continue
            with torch.no_grad():
                y.copy_(x)

    def receive(self, side: int, event: HookEvent) -> None:
        """Note what a module receives before it runs, and on the followed side the pairs that this belongs to."""
        self._received[side, event.fqn, event.call] = {
            path: (version_of(x), self.of(x) if side == self._followed else None)
            for path, x in tree.arguments(event.args, event.kwargs)
        }

    def inputs(self, a: ModuleTensors, b: ModuleTensors) -> Inputs:
        """The pairs that the arguments of a call belong to, compared now if they were not yet; True if these are all.

        For an argument that the call changed, the pair that it belonged to before the call.
        """
        before = [self._received.get((side, seen.fqn, seen.call), {}) for side, seen in ((A, a), (B, b))]
        if not (a.received and b.received):  # one side is a dump, or had to wait as a copy
            return [pair for _, pair in before[self._followed].values() if pair], False
        made = {id(x) for _, x in (*a.tensors, *b.tensors)}
        theirs = dict(b.received)
        pairs = [
            self._input(a.fqn, path, x, theirs[path])
            if path in theirs and all(map(_is_unchanged, before, (path, path), (x, theirs[path]), (made, made)))
            else before[self._followed].get(path, (-1, None))[1]
            for path, x in a.received
            if id(x) not in self._constants
        ]
        complete = None not in pairs and all(pair.pending or pair.values for pair in pairs if pair)
        return [pair for pair in pairs if pair], complete

    def _input(self, fqn: str, path: str, x: Tensor, y: Tensor) -> Pair | None:
        """The pair of two arguments of a module; None if they can't be compared."""
        followed, other = (x, y) if self._followed == A else (y, x)
        if compared := self.of(followed, other):
            return compared
        try:
            if reshaped(x, y):
                return Pair({"differs": True}, _NOWHERE)
            pair = Pair({}, _NOWHERE, pending=compare_tensors(x, y))
        except Exception as error:
            self._skipped.append(incomparable(error, x, y, fqn, path, "its input "))
            return None
        self.remember(followed, other, pair)
        return pair

    def remember(self, followed: Tensor, other: Tensor, pair: Pair) -> None:
        """Note the pair of a tensor of the followed side and one of the other."""
        if not followed.is_inference():
            self._of[followed] = _Compared(_state(followed), ref(other), _state(other), pair)

    def of(self, x: Tensor, y: Tensor | None = None) -> Pair | None:
        """The pair that a tensor of the followed side, unchanged since, was part of; with `y`, only one with that."""
        compared = self._of.get(x)
        if compared is None or compared.state != _state(x):
            return None
        # Without a glimpse nothing tells whether a tensor was written to without a new version.
        if y is not None and (
            compared.other() is not y
            or None in compared.state + compared.other_state
            or compared.other_state != _state(y)
        ):
            return None
        return compared.pair


def _state(x: Tensor) -> tuple[object, object]:
    return version_of(x), glimpse(x)


def _is_unchanged(before: Mapping[str, _Received], path: str, x: Tensor, made: set[int]) -> bool:
    """True for an argument that a call has not changed. What operators received was not looked at `before`."""
    if x.is_inference():
        return False
    return before[path][0] == version_of(x) if path in before else not before and id(x) not in made


def reshaped(x: Tensor, y: Tensor) -> str:
    """Describe how the shapes differ; "" if they don't. Nested tensors differ if one of their items does."""
    if x.is_nested and y.is_nested and x.size(0) == y.size(0) and not (x.is_meta or y.is_meta):
        items = enumerate(zip(x.detach().unbind(), y.detach().unbind(), strict=True))
        return next((f"item {number}: {difference}" for number, pair in items if (difference := reshaped(*pair))), "")
    a, b = (shape(tree.shape_of(tensor)) for tensor in (x, y))
    return f"shape {a} → {b}" if a != b else ""


def incomparable(error: Exception, x: Tensor, y: Tensor, fqn: str, path: str = "", which: str = "") -> Skipped:
    """The row of `skipped` for a layout or dtype that PyTorch can't reduce, which is no reason to lose the run."""
    dtypes = " → ".join(dict.fromkeys((tree.dtype_text(x), tree.dtype_text(y))))
    return Skipped(fqn, f"{which}can't be compared ({dtypes}, {cause(error, x, y)})", path)
