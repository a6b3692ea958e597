"""Attention that sees the next tokens, which the loss asks for; and a loss that asks for the tokens after these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from hookcli.capabilities.learn.forwards.batch_first import TimeFirst
from hookcli.capabilities.learn.graphs import Mark
from hookcli.capabilities.learn.losses.lost_head import LAYERS, way
from hookcli.hooks.events import HookEvent
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import Choices, ignored_label, labels_in
from hookcli.hooks.torch_private.nodes import attended, embedded, operator, returned_shape, shifted_dimension
from hookcli.probes.shared.doubled import ARRANGES
from hookcli.tensors import tree

STEPS = 3  # the first recorded ones, all of which must show it
_TOKENS, _ALL, _NODES = 3, 64, 20_000  # of a sequence, and of all; of a graph
_NEAR = 16  # nodes of an attention before its softmax
_SHIFTS = {"Cat", "Slice", "Roll", "ConstantPadNd", "Index", "IndexSelect", "CopySlices"}
_MIXES = {"Bmm", "Baddbmm", "Softmax", "SafeSoftmax"}
_HIDES = -1e4  # which is added to the score of a token that is to be hidden
WORDS = (
    "attention sees the tokens that it should predict: the labels are the next tokens of the input, "
    "and no causal mask hides them"
)
SHIFTED = (
    "the labels are the tokens two places ahead of the input: they are shifted twice, as by the program and by a model "
    "that shifts its labels itself"
)
ACROSS = (
    "{} takes dimension 0 of its input, the batch, for the sequence, while the labels are the next tokens along "
    "dimension 1: give batch_first=True"
)
COPIED = "the labels are the very tokens that the model receives: it only has to copy each; shift the labels by one"


@dataclass
class Future:
    """The tokens that the embeddings of a step got, and whether attention sees the next ones, if that is `asked`."""

    asked: bool
    time_first: TimeFirst = field(default_factory=TimeFirst)
    tokens: list[Tensor] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    """For each loss whether its labels are the next tokens, and attention sees them."""
    skipped: list[Tensor] = field(default_factory=list)
    """For each loss whether its labels are the tokens after the next ones, of an embedding that is trained."""
    copied: list[Tensor] = field(default_factory=list)
    """For each loss whether its labels are the tokens of all embeddings, and attention hides the next ones."""
    across: list[Tensor] = field(default_factory=list)
    """For each loss whether its labels are the next tokens of the rows of a batch, which a module takes for time."""
    taken: str = ""
    """The name of this module."""
    passes: int = 0
    recurrent: list[tuple[Tensor, ref[Mark]]] = field(default_factory=list)
    """The tokens that recurrent modules read in one direction, with a mark on the node of what each returned."""
    last: Tensor | None = None
    """The tokens that a recurrent module read, if the last layer received what it returned for each of them."""
    _reads: dict[str, Tensor | None] = field(default_factory=dict)
    """The tokens that such a module has received, by its name."""
    _trained: bool = False

    def enter(self, event: HookEvent) -> None:
        """Note the tokens that an embedding is about to get, or a recurrent module, or a layer after one."""
        module = event.module
        if not self.asked:
            return
        if isinstance(module, nn.RNNBase) and not module.bidirectional:
            self._reads[event.fqn] = self.tokens_of(event)
        elif isinstance(module, LAYERS):
            self.last = self.tokens_of(event) if self.recurrent else None
        elif isinstance(module, nn.Embedding):
            for x in filter(are_tokens, tree.received(event.args, event.kwargs)[:1]):
                self.tokens.append(x.detach())
                self._trained |= module.weight.requires_grad  # else a new head may look ahead on purpose

    def tokens_of(self, event: HookEvent) -> Tensor | None:
        """The tokens whose embeddings, or what recurrent modules have made of each, a module receives; else None."""
        received = next(iter(tree.received(event.args, event.kwargs)), None)
        for node in way(received.grad_fn if received is not None else None):
            read = (x for x, mark in self.recurrent if (one := mark()) is not None and one.is_on(node))
            tokens = embedded(node)
            tokens = next(read, None) if tokens is None else tokens
            if tokens is not None and are_tokens(tokens):
                return tokens
        return None

    def leave(self, event: HookEvent) -> None:
        """Mark the node of what such a module returns for each token."""
        if (tokens := self._reads.pop(event.fqn, None)) is not None:
            output = tree.tensors(event.output)[0]
            self.recurrent += [(tokens, Mark.on(output.grad_fn))] if output.grad_fn is not None else []

    def look(self, roots: Sequence[Tensor], choices: Sequence[Choices]) -> None:
        """Look at the labels of a loss, and at the attention on the way to it, as its backward pass begins.

        Waits for nothing.
        """
        self.passes += 1
        labels = labels_in(choices[0].node) if len(choices) == 1 else None
        if labels is None or not tree.is_plain(labels) or roots[0].grad_fn is None:
            return
        ignored = ignored_label(choices[0].node)
        self.skipped += any_of(self.shifted_twice(choices[0].node, labels, ignored))
        asked = [next_ones(x, labels, ignored) for x in self.tokens]
        self.across += any_of(self.taken_for_time(asked))
        nodes = [*islice(walk([roots[0].grad_fn]), _NODES)] if any(one is not None for one in asked) else []
        shown = [sights(nodes, x) if one is not None else [] for x, one in zip(self.tokens, asked, strict=True)]
        self.seen += any_of([all_of([one, *sees]) for one, sees in zip(asked, shown, strict=True) if sees])
        recurrent = [] if self.last is None else [next_ones(self.last, labels, ignored, 0)]
        self.copied += any_of([*self.copies(nodes, labels, ignored, shown), *recurrent])

    def shifted_twice(self, loss: Node, labels: Tensor, ignored: int) -> list[Tensor]:
        """Whether the labels are the tokens after the next ones, and the model has shifted them, for each embedding."""
        if not self._trained:
            return []
        sliced = are_sliced(loss)
        ahead = ((x, next_ones(x, labels, ignored, 2)) for x in self.tokens)
        return [one & (sliced | ends_with(labels, len(x), ignored)) for x, one in ahead if one is not None]

    def taken_for_time(self, asked: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Whether the labels are the next tokens of rows (B, T), for each module that takes B of them for time."""
        found = list[Tensor | None]()
        for fqn, (length, *others) in self.time_first.sequences():
            alike = [one for x, one in zip(self.tokens, asked, strict=True) if [*x.shape] == [length, others[0]]]
            if alike and length != others[0]:
                self.taken = fqn
                found += alike
        return found

    def copies(
        self, nodes: Sequence[Node], labels: Tensor, ignored: int, shown: Sequence[Sequence[Tensor]]
    ) -> list[Tensor]:
        """True if these labels are all tokens whose attention to each other is causal; empty if none are attended to.

        `shown`: for each embedding's tokens whether attention sees the next one. Tokens that the model shifts itself
        are no labels to copy.
        """
        causal, wrong = [], []
        for x, sees in zip(self.tokens, shown, strict=True):
            if sees:
                same = None if is_shifted(nodes, x) else next_ones(x, labels, ignored, 0)
                shows = [*(~one for one in sees), *sights(nodes, x, ahead=0)]  # itself, and not the next one
                causal.append(torch.stack([one.to(x.device, non_blocking=True) for one in shows]).all())
                wrong.append(causal[-1] if same is None else causal[-1] & ~same)
        return [torch.stack(causal).any() & ~torch.stack(wrong).any()] if causal else []

    def words(self, name: Callable[[str], str]) -> str:
        """Words on a fault that each loss of the step has; "" if there is none. Waits for an accelerator."""
        across = ACROSS.format(name(self.taken) or "the model")
        faults = ((WORDS, self.seen), (across, self.across), (SHIFTED, self.skipped), (COPIED, self.copied))
        for words, shown in faults:
            if self.passes and len(shown) == self.passes and all(map(bool, shown)):
                return words
        return ""


def ends_with(labels: Tensor, rows: int, ignored: int) -> Tensor:
    """True if the last label of each row is ignored, as a model does that shifts its labels. Waits for nothing."""
    fit = labels.numel() % rows == 0
    return (labels.reshape(rows, -1)[:, -1] == ignored).all() if fit else torch.zeros_like(labels.any())


def are_sliced(loss: Node) -> bool:
    """True if the scores of a cross-entropy are a slice along the places of those that the last layer has returned."""
    node = loss
    for _ in range(_NEAR):
        after = node.next_functions[0][0] if node.next_functions else None
        if after is None or operator(after) not in (*ARRANGES, "LogSoftmax", "Slice", "Clone"):
            return False
        if operator(after) == "Slice" and moves_places(after):
            return True
        node = after
    return False


def are_tokens(x: Tensor) -> bool:
    """True for the tokens of some sequences that are long enough."""
    return x.dim() == 2 and x.shape[1] >= _TOKENS and x.numel() >= _ALL and tree.is_plain(x)


def any_of(truths: Sequence[Tensor | None]) -> list[Tensor]:
    """Return one tensor that is true if any known one is; an empty list if none is known. Waits for nothing."""
    known = [one for one in truths if one is not None]
    return [torch.stack(known).any()] if known else []


def all_of(truths: Sequence[Tensor | None]) -> Tensor | None:
    """True if all of these are; None if one is not known. Waits for nothing."""
    known = [one for one in truths if one is not None]
    return torch.stack([one.to(known[0].device) for one in known]).all() if len(known) == len(truths) else None


def next_ones(tokens: Tensor, labels: Tensor, ignored: int, places: int = 1) -> Tensor | None:
    """True if these labels, but for ignored ones, are the tokens so many `places` ahead, which are not all the same.

    None: other sizes.
    """
    rows, length = tokens.shape
    if labels.numel() not in (rows * length, rows * (length - min(places, 1))) or labels.device != tokens.device:
        return None
    with torch.no_grad():
        after, asked = tokens[:, places:], labels.reshape(rows, -1)[:, : length - places]
        counts = asked != ignored
        mostly = 2 * counts.sum() >= counts.numel()
        first = max(places, 1)
        differ = (tokens[:, first:] != tokens[:, first - 1 : -1]).any()
        return ((after == asked) | ~counts).all() & mostly & differ


def sights(nodes: Sequence[Node], tokens: Tensor, ahead: int = 1) -> list[Tensor]:
    """For each attention to these tokens whether all of them see the one so far `ahead`; empty without attention.

    Attention to something else, such as the words of another language or the patches of an image, may see all of it.
    Waits for nothing.
    """
    above = reached_from(nodes, tokens)
    found = []
    for node in nodes:
        if operator(node) in ("Softmax", "SafeSoftmax") or operator(node).startswith("ScaledDotProduct"):
            known = attended(node, tokens.shape[1]) if is_within(node, above) else None
            found += [sees_ahead(*known, ahead)] if known is not None else []
    return found


def reached_from(nodes: Sequence[Node], tokens: Tensor, mixes: Collection[str] = ()) -> Set[Node]:
    """The nodes whose values are computed from an embedding of these tokens, without the operators in `mixes`."""
    users = defaultdict(list)
    for node in nodes:
        for before, _ in node.next_functions:
            users[before].append(node)
    known = ((node, embedded(node)) for node in nodes)
    waiting = [node for node, x in known if x is not None and is_same(x, tokens)]
    above = {*waiting}
    while waiting:
        after = [node for node in users[waiting.pop()] if node not in above and operator(node) not in mixes]
        above.update(after)
        waiting += after
    return above


def is_shifted(nodes: Sequence[Node], tokens: Tensor) -> bool:
    """True if the model itself moves embeddings of these tokens, or what layers make of each, to other places."""
    return any(map(moves_places, reached_from(nodes, tokens, _MIXES)))


def moves_places(node: Node) -> bool:
    """True for a node that puts values at other places of a dimension which is not the last one, of the features."""
    if operator(node) not in _SHIFTS:
        return False
    dim = shifted_dimension(node)
    return dim is None or dim != len(returned_shape(node)) - 1


def is_same(a: Tensor, b: Tensor) -> bool:
    """True if two tensors are at one place in memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape


def is_within(node: Node, above: Set[Node]) -> bool:
    """True if both the queries and the keys of an attention are among these nodes."""
    product = node
    if not operator(node).startswith("ScaledDotProduct"):
        products = (one for one in islice(walk([node]), _NEAR) if operator(one) in ("Bmm", "Baddbmm"))
        product = next(products, node)
    inputs = [one for one, _ in product.next_functions]
    queries_and_keys = inputs[1:3] if operator(product) == "Baddbmm" else inputs[:2]  # which adds to a mask
    return all(one in above for one in queries_and_keys)


def sees_ahead(weights: Tensor | None, bias: Tensor | None, causal: bool, ahead: int) -> Tensor:
    """True if each token, but for the last ones, sees the one so far `ahead`, by these weights or this mask."""
    with torch.no_grad():
        if weights is not None:
            return (weights.detach().diagonal(ahead, -2, -1) > 0).all()
        if bias is None or causal:
            return torch.tensor(not (causal and ahead))
        steps = bias.detach().diagonal(ahead, -2, -1)
        return (steps if steps.dtype == torch.bool else steps > _HIDES).all()
