"""Infinities that are meant: -inf that a program wrote into scores, and the queries that see no key for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef

from hookcli.hooks.events import HookEvent
from hookcli.hooks.tensor_origins import memory_of
from hookcli.table import Row
from hookcli.table.marks import MASK, WRITTEN
from hookcli.table.names import is_operator
from hookcli.tensors import tree
from hookcli.tensors.chunks import fetched, on_cpu
from hookcli.tensors.non_finite import Kinds, kinds_of

_SOFTMAX = {"softmax", "log_softmax", "logsoftmax", "_softmax", "_log_softmax", "_safe_softmax"}
_NAMED = 3  # queries
Place = tuple[str, int, str]
"""The fqn and the number of a call, and the path of a tensor that it returned."""


@dataclass(slots=True)
class _Softmax:
    """A call of a softmax: its row's place, those that hold its scores, kinds of values, and the hidden queries."""

    place: Place
    scores: list[Place]
    kinds: Tensor
    hidden: Tensor | None


class MaskedScores:
    """Sees the calls of modules and operators as they end: where -inf was written, and which scores go to a softmax.

    -inf is meant if it was given: written as a number, or already in what a call received. One that a call computes
    from finite values, as the logarithm of 0, is not. Operators show which it was; without them, autograd's nodes do.
    """

    def __init__(self, *, ops: bool) -> None:
        self._ops = ops
        self._memory: dict[int, StorageWeakRef] = {}  # held, so that no other memory gets the number
        self._places: dict[int, list[Place]] = defaultdict(list)
        self._given: set[int] = set()
        """The memory that holds -inf which was given, or on an accelerator may hold it."""
        self._softmaxes: list[_Softmax] = []
        self._written: list[tuple[Place, Tensor]] = []
        self._remarks: dict[Place, str] = {}

    def see(self, event: HookEvent) -> None:
        """Note what a call did with -inf; where operators are watched also where its tensors are, for a softmax."""
        if not self._ops:
            for path, x in tree.leaves(event.output):
                if _is_filled(tree.base(x).grad_fn):  # to ask a view may make a node
                    self._take_written((event.fqn, event.call, path), x)
            return
        name = event.operator.name if event.operator else type(event.module).__name__
        if name.lower() in _SOFTMAX:
            self._take_softmax(event)
        given = self._was_given(event, name)
        for path, x in tree.leaves(event.output):
            if memory := memory_of(x):
                self._memory.setdefault(memory, StorageWeakRef(x.untyped_storage()))
                self._places[memory].append((event.fqn, event.call, path))
                if (given or memory in self._given) and self._take_written((event.fqn, event.call, path), x):
                    self._given.add(memory)

    def _was_given(self, event: HookEvent, name: str) -> bool:
        """True if -inf was among an operator's arguments: as a number, or in a tensor whose values it hands on."""
        if any(isinstance(value, float) and value == -inf for value in (*event.args, *event.kwargs.values())):
            return True
        if name.strip("_") not in _HANDS_ON:
            return False
        for _, x in tree.arguments(event.args, event.kwargs):
            memory = memory_of(x)
            if memory in self._given:
                return True
            if memory in self._memory or isinstance(x, nn.Parameter) or not on_cpu(x):
                continue
            kinds = kinds_of(x)  # of a constant, such as a buffer
            if kinds is not None and Kinds(*kinds[0].tolist()).is_masked:
                return True
        return False

    def _take_written(self, place: Place, x: Tensor) -> bool:
        """Keep the kinds of values of a tensor in which -inf may have been written; False if it surely has none."""
        kinds = kinds_of(tree.local(x))
        if kinds is None or (on_cpu(x) and not kinds[0, 2]):
            return False
        self._written.append((place, kinds))
        return True

    def batch_ended(self) -> None:
        """Forget where the tensors of the batch were."""
        self._remarks = self.remarks()
        self._softmaxes.clear()
        self._written.clear()
        self._memory.clear()
        self._places.clear()
        self._given.clear()

    def _take_softmax(self, event: HookEvent) -> None:
        (_, x), *_ = [*tree.arguments(event.args, event.kwargs), ("", None)]
        kinds = kinds_of(x) if x is not None and x.dim() else None
        if x is None or kinds is None:
            return
        dim = event.kwargs.get("dim", event.args[1] if len(event.args) > 1 else getattr(event.module, "dim", -1))
        hidden = None
        if not on_cpu(x) or kinds[0, 2]:
            rows = x.detach().amax(dim if isinstance(dim, int) else -1).isneginf()
            hidden = rows.reshape(-1, rows.shape[-1]).any(0) if rows.dim() else rows.reshape(1)
        path = next((path for path, _ in tree.leaves(event.output)), "")
        self._softmaxes.append(_Softmax((event.fqn, event.call, path), [*self._places[memory_of(x)]], kinds, hidden))

    def remarks(self) -> dict[Place, str]:
        """MASK and WRITTEN for places whose infinities are meant; for a softmax, the queries that see no key."""
        remarks = {**self._remarks}
        for (place, _), flags in zip(self._written, fetched([kinds for _, kinds in self._written]), strict=True):
            kinds = Kinds(*flags[0])
            if kinds.is_masked and (is_operator(place[0]) or not kinds.hidden_row):  # an operator may write the rest
                remarks[place] = WRITTEN
        kept = fetched([call.kinds for call in self._softmaxes])
        for call, flags in zip(self._softmaxes, kept, strict=True):
            if Kinds(*flags[0]).is_masked:
                remarks |= dict.fromkeys(call.scores, MASK)
                if hidden := _queries(call.hidden):
                    remarks[call.place] = hidden
        return remarks


_FILLS = ("MaskedFill", "Where", "CopySlices", "IndexPut", "IndexFill", "Scatter", "MaskedScatter")
"""The beginnings of the names of nodes by which programs write a number into places."""
_SHAPES = ("View", "UnsafeView", "Reshape", "Transpose", "Permute", "T", "Slice", "Select", "Unsqueeze", "Squeeze")
_KEEPS = (*_SHAPES, "Expand", "Clone", "ToCopy", "Alias", "Sub", "Div", "Mul", "LogSoftmax")
"""Those of nodes after which the -inf of their first input is still there, and any other number is finite."""
_DEEP = 8  # nodes
_HAND_ON = """
add, alias, cat, chunk, clone, contiguous, cpu, cuda, detach, div, double, expand, expand_as, flatten, flip,
float, gather, getitem, half, index, index_add, index_copy, index_fill, index_put, index_select, log_softmax,
masked_fill, masked_scatter, mul, narrow, pad, permute, reshape, roll, scatter, scatter_add, select, setitem,
slice, split, squeeze, stack, sub, t, take_along_dim, to, transpose, tril, triu, truediv, type, unbind,
unflatten, unsqueeze, view, where
"""
_HANDS_ON = frozenset(re.split(r"\W+", _HAND_ON.strip()))
"""Operators after which a -inf of their arguments is still there, and any other number is finite."""


def _is_filled(node: Node | None) -> bool:
    """True if a tensor with this node is what a program has written numbers into, or the sum with a constant."""
    for _ in range(_DEEP):
        if node is None:
            return False
        name = node.name().rstrip("0123456789").removesuffix("Backward")
        inputs = [before for before, _ in node.next_functions]
        if name in _FILLS or (name == "Add" and None in inputs):
            return True
        if name not in _KEEPS:
            return False
        node = inputs[0]
    return False


def with_remarks(rows: Iterable[Row], remarks: Mapping[Place, str]) -> list[Row]:
    """The rows of activations, with the remarks on their places as `scores`."""
    remarked = []
    for row in rows:
        remark = remarks.get((row.fqn, row.get("call") or 0, row.get("path") or ""))
        meant = remark in (MASK, WRITTEN)
        holds = remark and (not meant or (row.stats and row.stats.inf))  # none before -inf was written into its memory
        remarked.append(replace(row, values={**row.values, "scores": remark}) if holds else row)
    return remarked


def _queries(hidden: Tensor | None) -> str:
    """The queries that see no key, in words."""
    numbers = [] if hidden is None else hidden.nonzero().flatten().tolist()
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"query {numbers[0]} sees no key"
    more = f" and {len(numbers) - _NAMED:,} more" if len(numbers) > _NAMED else ""
    return f"queries {', '.join(map(str, numbers[:_NAMED]))}{more} see no key"
