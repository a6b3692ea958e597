"""Infinities that are meant: -inf that a program wrote into scores, and the queries that see no key for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from hookcli.hooks.events import HookEvent
from hookcli.hooks.operators.calls import is_whole
from hookcli.hooks.tensor_origins import memory_of
from hookcli.table import Row
from hookcli.table.marks import MASK, MEANT, UNKNOWN, WRITTEN, is_lost
from hookcli.table.names import is_operator
from hookcli.tensors import tree
from hookcli.tensors.chunks import fetched, on_cpu
from hookcli.tensors.non_finite import Kinds, is_finite, kinds_of

_SOFTMAX = {"softmax", "log_softmax", "logsoftmax", "_softmax", "_log_softmax", "_safe_softmax"}
_NAMED = 3  # queries
_WITHOUT_CAUSE = (*MEANT, UNKNOWN)
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
        self._written: list[tuple[Place, str, Tensor]] = []
        self._remarks: dict[Place, str] = {}
        self._lost: set[Place] = set()
        self.computed: set[Place] = set()
        """Where a module itself makes infinities: by a logarithm, as far as nodes tell, or by products with weights."""

    def see_module(self, event: HookEvent, surely_finite: Callable[[str], bool]) -> None:
        """Note the tensors with infinities that a module returned, where no operators are watched."""
        multiplies = event.module is not None and multiplies_by_weights(event.module)
        for path, x in tree.leaves(event.output):
            if multiplies:
                self.computed.add((event.fqn, event.call, path))
                continue
            node = tree.base(x).grad_fn  # to ask a view itself may make a node
            origin, place = _origin(node), (event.fqn, event.call, path)
            if origin == _COMPUTED:
                self.computed.add(place)
            elif (origin == WRITTEN or node is None) and not surely_finite(path):
                self._take_written(place, x, origin)

    def see(self, event: HookEvent) -> None:
        """Note what a call did with -inf, and where its tensors are, for a softmax; where operators are watched."""
        name = event.operator.name if event.operator else type(event.module).__name__
        if name.lower() in _SOFTMAX:
            self._take_softmax(event)
        was_given = self._was_given(event, name)
        for path, x in tree.leaves(event.output):
            if memory := memory_of(x):
                self._memory.setdefault(memory, StorageWeakRef(x.untyped_storage()))
                place = event.fqn, event.call, path
                self._places[memory].append(place)
                if (was_given or memory in self._given) and self._take_written(place, x, WRITTEN):
                    self._given.add(memory)

    def _was_given(self, event: HookEvent, name: str) -> bool:
        """True if -inf was among an operator's arguments: as a number, or in a tensor whose values it hands on."""
        if any(isinstance(value, float) and value == -inf for value in (*event.args, *event.kwargs.values())):
            return True
        name, tensors = name.strip("_"), tree.received(event.args, event.kwargs)
        if name == "log":
            # Of ones and zeros: the logarithm of a mask is meant. An accelerator would have to wait for the answer.
            return any(on_cpu(x) and bool(((x == 0) | (x == 1)).all() and x.any()) for x in tensors)
        scales = name in _SCALES and (len(tensors) > 1 or not on_cpu(tensors[0]))
        if scales or name not in _HANDS_ON:
            return False
        return any(map(self._holds, tensors)) and all(self._holds(x) or is_finite(x) for x in tensors)

    def _holds(self, x: Tensor) -> bool:
        """True if it holds -inf that was given, or is a constant, such as a buffer, with -inf."""
        memory = memory_of(x)
        if memory in self._memory or isinstance(x, nn.Parameter) or not on_cpu(x):
            return memory in self._given
        kinds = kinds_of(x)
        return kinds is not None and Kinds(*kinds[0].tolist()).is_masked

    def _take_written(self, place: Place, x: Tensor, remark: str) -> bool:
        """Keep the kinds of values of a tensor in which -inf may have been written; False if it surely has none."""
        local = tree.local(x).detach()
        kinds = kinds_of(local)
        if kinds is None or x.is_complex() or (on_cpu(x) and not kinds[0, 2]):  # complex scores have no order
            return False
        items = local.flatten(1) if local.dim() > 1 else local.reshape(1, -1)
        hidden = items.amax(1).amin().isneginf()  # an item of the batch without any score
        self._written.append((place, remark, torch.cat((kinds, hidden.reshape(1, 1).to(kinds)), 1)))
        return True

    def judge(self, rows: Iterable[Row]) -> None:
        """Note the places of a batch whose infinities are a fault, whatever holds for other batches."""
        unmeant = (row for row in with_remarks(rows, self.remarks()) if not row.get("scores"))
        self._lost |= {_place(row) for row in unmeant if is_lost(row)}

    def has_computed(self, row: Row) -> bool:
        """True if a module itself made the infinities of its row, as by a logarithm, as far as nodes tell."""
        return _place(row) in self.computed

    def batch_ended(self) -> None:
        """Forget where the tensors of the batch were."""
        self._remarks = self.remarks()
        self._softmaxes.clear()
        self._written.clear()
        self._memory.clear()
        self._places.clear()
        self.computed.clear()
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
        kinds = fetched([kinds for *_, kinds in self._written])
        for (place, remark, _), ((*flags, hidden),) in zip(self._written, kinds, strict=True):
            if Kinds(*flags).is_masked and (is_operator(place[0]) or not hidden):  # an operator may write the rest
                remarks[place] = remark
        kept = fetched([call.kinds for call in self._softmaxes])
        for call, flags in zip(self._softmaxes, kept, strict=True):
            if Kinds(*flags[0]).is_masked:
                remarks |= dict.fromkeys(call.scores, MASK)
                if hidden := _queries(call.hidden):
                    remarks[call.place] = hidden
        return {
            place: remark
            for place, remark in remarks.items()
            if place not in self._lost or remark not in _WITHOUT_CAUSE
        }


_FILLS = ("MaskedFill", "Where", "CopySlices", "IndexPut", "IndexFill", "Scatter", "MaskedScatter")
"""The beginnings of the names of nodes by which programs write a number into places."""
_SHAPES = ("View", "UnsafeView", "Reshape", "Transpose", "Permute", "T", "Slice", "Select", "Unsqueeze", "Squeeze")
_COPIES = ("Expand", "Clone", "ToCopy", "Alias", "Topk", "Index", "Gather", "LogSoftmax")
_PRODUCTS = ("Div", "Mul")
_SCALED = ("Sub", "Add", *_PRODUCTS)
_FINITE = ("Addmm", "Mm", "Bmm", "Addmv", "Mv", "Convolution", "Linear", "Tanh", "Relu", "NativeLayerNorm")
"""Nodes that make no -inf from finite numbers. Only the nodes listed above may stand between one and the output."""
_MAKERS = ("Log", "Log2", "Log10", "Log1P", "Reciprocal", "Pow", "Exp", "Rsqrt", "Logit")
"""Nodes that may make infinities from finite numbers."""
_COMPUTED = "computed"
_DEEP = 8  # nodes
_HAND_ON = """
add alias cat chunk clone contiguous cpu cuda detach div double expand expand_as flatten flip
float gather getitem half index index_add index_copy index_fill index_put index_select log_softmax
masked_fill masked_scatter mul narrow pad permute reshape roll scatter scatter_add select setitem
slice split squeeze stack sub t take_along_dim to transpose tril triu truediv type unbind
unflatten unsqueeze view where
"""
_SCALES = ("mul", "div", "truediv")
_HANDS_ON = frozenset(_HAND_ON.split())
"""Operators after which a -inf of their arguments is still there, and any other number is finite."""


def _origin(node: Node | None) -> str:
    """How infinities came into a tensor of this node, as far as nodes tell: WRITTEN, _COMPUTED or UNKNOWN.

    They were written if a program has put numbers into the result of a plain layer, and computed if it has put in none
    and a logarithm, or another function that may make infinities itself, stands between. Both together leave it open.
    """
    written = scaled = False
    for _ in range(_DEEP):
        if node is None:
            return UNKNOWN
        name = node.name().rstrip("0123456789").removesuffix("Backward")
        if name in _FINITE:
            return WRITTEN if written else _COMPUTED if scaled else UNKNOWN
        if name in _MAKERS:
            return UNKNOWN if written else _COMPUTED
        if name not in (*_FILLS, *_SHAPES, *_COPIES, *(() if written else _SCALED)):
            return UNKNOWN
        written, scaled = written or name in _FILLS, scaled or name in _PRODUCTS
        inputs = [before for before, _ in node.next_functions if before is not None]
        if len(inputs) != 1:
            return UNKNOWN
        node = inputs[0]
    return UNKNOWN


def multiplies_by_weights(module: nn.Module) -> bool:
    """True for a layer of PyTorch's with a matrix of weights, whose infinities are an overflow: nothing writes any."""
    own = nn.Module.named_parameters(module, recurse=False)  # a class may list its parameters in its own way
    weights = any(x.dim() > 1 for _, x in own if not is_lazy(x))
    return weights and is_whole(module) and not isinstance(module, (nn.Embedding, nn.EmbeddingBag))


def _place(row: Row) -> Place:
    return row.fqn, row.get("call") or 0, row.get("path") or ""


def with_remarks(rows: Iterable[Row], remarks: Mapping[Place, str]) -> list[Row]:
    """The rows of activations, with the remarks on their places as `scores`."""
    remarked = []
    for row in rows:
        remark = remarks.get(_place(row))
        # A tensor held no -inf before it was written into its memory.
        holds = remark and (remark not in _WITHOUT_CAUSE or (row.stats and row.stats.inf))
        remarked.append(row.having({"scores": remark}) if holds else row)
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
