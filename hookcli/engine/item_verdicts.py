"""Judges an operation by which items of a batch mix: surely a fault, or what a set, a graph or an assignment means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from hookcli.hooks.torch_private.modules import BatchNorm, Convolution
from hookcli.probes.item_paths import Operation, Shape, first_part

IS_IT_MEANT = "is it meant?"
_SUMS = frozenset(("index_add", "scatter_add", "scatter_reduce", "index_reduce", "segment_reduce"))
_TAKES = frozenset(("getitem", "index_select", "index", "gather", "take_along_dim", "embedding"))
_JOINS = frozenset(("cat", "concat", "concatenate", "stack", "hstack", "column_stack", "dstack"))
_ATTENTION = frozenset(("scaled_dot_product_attention", "multi_head_attention_forward"))
_DISTANCES = frozenset(("cdist", "pairwise_distance", "cosine_similarity"))
_PRODUCTS = _DISTANCES | frozenset(
    ("matmul", "rmatmul", "mm", "bmm", "mv", "einsum", "addmm", "baddbmm", "addmv", "spmm", "sparse_mm", "inner")
)
_PRODUCTS |= frozenset(("linear", "bilinear", "tensordot", "conv1d", "conv2d", "conv3d"))
_GROUPS = frozenset(("view", "reshape", "unflatten", "chunk", "split", "tensor_split", "unfold", "getitem", "unbind"))
_SHIFTS = frozenset(("add", "radd", "sub", "rsub", "subtract"))
_COMBINES = _SHIFTS | frozenset(("mul", "rmul", "multiply", "div", "rdiv", "divide"))
_COMBINES |= frozenset(
    ("true_divide", "truediv", "rtruediv", "pow", "lerp", "addcmul", "addcdiv", "maximum", "minimum")
)
_COMBINES |= frozenset(("where", "masked_fill", "fmod", "remainder", "batch_norm", "copy", "setitem", "hypot", "polar"))
_NO_REDUCTIONS = _PRODUCTS | _ATTENTION | _GROUPS | _TAKES  # though they may return less than they take


@dataclass(frozen=True, slots=True)
class Verdict:
    """What mixes the items, in a sentence. It is surely a `fault`, or may be meant, as `nodes` of a graph or else.

    `groups`: it puts the items into groups, whose statistics may be meant. `of_vectors`: it adds a statistic to items
    that are a vector each, or subtracts it, as an equivariant layer begins. `scope`: the module that does it.
    """

    sentence: str
    fault: bool = False
    nodes: bool = False
    groups: bool = False
    of_vectors: bool = False
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Mixture:
    """How a tensor came to be that holds values of several items together.

    `verdicts`: on what mixed them. `by`: the operation by which it began. `learned`: weights were applied to it since.
    `wide`: more than the items was reduced. `shared`: one value was given to many items.
    """

    verdicts: tuple[Verdict, ...] = ()
    by: str = ""
    learned: bool = False
    wide: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Meeting:
    """An operation that returns a mixture, in a model whose batch has `size` items of `positions` each, if 3-D.

    `clean` are the shapes of the tensors that it takes in which items stand by themselves, `mixed` the shapes of
    mixtures, and `others` the shapes of tensors that depend on no item. `graph`: the model sums values by index.
    """

    one: Operation
    clean: Sequence[Shape]
    mixed: Sequence[Shape]
    others: Sequence[Shape]
    model: nn.Module
    size: int
    positions: int
    graph: bool

    def module(self) -> nn.Module:
        """The module in which the operation runs."""
        return self.model.get_submodule(self.one.scope)

    def taken(self) -> int:
        """The number of elements of the largest tensor that depends on items."""
        return max(map(math.prod, (*self.clean, *self.mixed)), default=0)

    def reduces(self) -> bool:
        """True if it computes fewer figures than it takes."""
        return not self.one.layer and self.one.name not in _NO_REDUCTIONS and self.one.elements < self.taken()

    def ends_items(self) -> bool:
        """True if what it takes may have a dimension of the items, and what it returns has none."""
        taken = any(has_items(shape, self.size) for shape in (*self.clean, *self.mixed))
        return taken and not any(has_items(shape, self.size) for shape in self.one.made)


def has_items(shape: Shape, size: int) -> bool:
    """True if a tensor of this shape may have a dimension of the items."""
    return any(first_part(shape, dim, size) for dim in range(len(shape)))


def sums_by_index(operations: Sequence[Operation]) -> bool:
    """True for a model that sums values by index, as graph networks do."""
    return any(one.name in _SUMS for one in operations)


def joined(meeting: Meeting, mixture: Mixture) -> Verdict | None:
    """The verdict on an operation that brings a mixture to items that stand by themselves; None if it tells nothing."""
    one = meeting.one
    uses = f"{one.place} uses {mixture.by}, computed over the whole batch"
    if one.name in _JOINS:
        about = f"{one.place} adds to each item a figure of the whole batch, as minibatch statistics do"
        return Verdict(f"{about}; {IS_IT_MEANT}") if mixture.shared else None
    if one.name in _SUMS:
        return by_index(meeting)
    if one.name in _PRODUCTS | _ATTENTION or one.elements > meeting.taken():
        return Verdict(f"{uses}, as weights or a memory are; {IS_IT_MEANT}")
    if one.name not in _COMBINES:
        return Verdict(f"{uses}; {IS_IT_MEANT}")
    if mixture.learned:
        return Verdict(f"{uses} and then by layers, as a context is; {IS_IT_MEANT}")
    if meeting.graph:
        return Verdict(f"{uses}, which is right if they are the nodes of a graph", nodes=True)
    vectors = not meeting.positions and all(len(shape) == 2 for shape in meeting.clean)
    return Verdict(uses, fault=True, of_vectors=vectors and one.name in _SHIFTS)


def mixing(meeting: Meeting) -> Verdict | None:
    """The verdict on an operation by which items mix that stood by themselves in all that it takes.

    None if it depends on what becomes of the result, as with a mean over the items.
    """
    if meeting.one.layer:
        return by_layer(meeting)
    return next(filter(None, (rule(meeting) for rule in _RULES)), None)


def of_sets(verdict: Verdict, meeting: Meeting) -> Verdict:
    """The verdict on items to which a statistic was added, once this operation takes them.

    Nothing tells the equivariant layer of a set that is given as a batch, `layer(x - x.mean(0))`, from one that was to
    take the mean of each vector: it is a question. Whoever goes on to divide by another statistic normalises.
    """
    if not verdict.of_vectors:
        return verdict
    if any(len(shape) > 1 for shape in meeting.one.weights):
        sentence = f"{verdict.sentence}, and gives that to layers, as equivariant layers of a set do; {IS_IT_MEANT}"
        return replace(verdict, sentence=sentence, fault=False, of_vectors=False)
    return replace(verdict, of_vectors=len(meeting.clean) + len(meeting.mixed) == 1)


def of_groups(verdict: Verdict, one: Operation) -> Verdict:
    """The verdict on groups of items, of which this operation computes a statistic."""
    sentence = f"{one.place} computes a figure for each group of items; {IS_IT_MEANT}"
    return replace(verdict, sentence=sentence, fault=False) if verdict.groups and verdict.fault else verdict


def by_layer(meeting: Meeting) -> Verdict:
    """The verdict on a layer whose operators are not seen."""
    one, module, taken = meeting.one, meeting.module(), meeting.clean[0]
    if one.opaque:
        return Verdict(f"{one.place} mixes the items, in code that hooks don't see; {IS_IT_MEANT}")
    if isinstance(module, BatchNorm):
        return Verdict(f"{one.place} normalises by the batch's statistics in eval mode", fault=True)
    batched = 3 if isinstance(module, nn.RNNBase) else 0
    if isinstance(module, Convolution):
        batched = len(module.stride) + 2
    if len(taken) < batched:
        return Verdict(f"{one.place} takes an input without a batch dimension; {IS_IT_MEANT}")
    if batched and taken[0] == 1:
        return Verdict(f"{one.place} takes the items as one sequence, in a batch of one; {IS_IT_MEANT}")
    return Verdict(f"{one.place} applies weights across the items" if one.weights else f"{one.place} mixes them", True)


def by_index(meeting: Meeting) -> Verdict | None:
    """The verdict on an operator that takes items, or sums them, by index."""
    one = meeting.one
    if one.name in _SUMS or (one.name in _TAKES and meeting.graph):
        return Verdict(f"{one.place} mixes them, which is right if they are the nodes of a graph", nodes=True)
    if one.name in _TAKES and any(len(shape) > 1 for shape in meeting.others):
        return Verdict(f"{one.place} takes other items by index, as neighbours are; {IS_IT_MEANT}")
    return None


def by_pairs(meeting: Meeting) -> Verdict | None:
    """The verdict on an operator that compares the items with each other."""
    one, module = meeting.one, meeting.module()
    shape = one.made[0] if one.made else ()
    if one.name not in _ATTENTION and (len(meeting.clean) < 2 or shape.count(meeting.size) < 2):
        return None
    together = math.prod(meeting.clean[0][:-2])  # matrices of pairs: a head each in a set, which is a batch of one
    if isinstance(module, nn.MultiheadAttention) and module.batch_first:
        swapped = together > module.num_heads
    else:
        swapped = meeting.positions > 1 and together > 0 and together % meeting.positions == 0
    if swapped:
        return Verdict(f"{one.place} compares the items instead of their positions: dimensions are swapped", fault=True)
    return Verdict(f"{one.place} compares the items with each other, as a set's; {IS_IT_MEANT}")


def by_product(meeting: Meeting) -> Verdict | None:
    """The verdict on a product of the items with something that does not depend on them."""
    one = meeting.one
    if one.name not in _PRODUCTS or len(meeting.clean) > 1:
        return None
    if not any(len(shape) > 1 for shape in one.weights):
        return Verdict(f"{one.place} mixes them, which is right if they are the nodes of a graph", nodes=True)
    if meeting.clean[0][:1] == (1,):
        return Verdict(f"{one.place} takes the items as one sequence, in a batch of one; {IS_IT_MEANT}")
    return Verdict(f"{one.place} applies weights across the items", fault=True)


def by_moving(meeting: Meeting) -> Verdict | None:
    """The verdict on an operator that puts values elsewhere, or computes as many as it takes."""
    one, taken = meeting.one, meeting.taken()
    if one.name in _GROUPS and one.made[0][:1] != (1,) and not any(has_items(s, meeting.size) for s in one.made):
        return Verdict(f"{one.place} puts values of several items together", fault=True, groups=True)
    if one.elements > taken:
        return Verdict(f"{one.place} mixes the items; {IS_IT_MEANT}")
    return Verdict(f"{one.place} mixes the items", fault=True) if one.elements == taken else None


_RULES: tuple[Callable[[Meeting], Verdict | None], ...] = (by_index, by_pairs, by_product, by_moving)
