"""Attention that sees the tokens which the loss asks for: the next ones, which no causal mask hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from hookcli.hooks.events import HookEvent
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import Choices, ignored_label, labels_in
from hookcli.hooks.torch_private.nodes import attended, operator
from hookcli.tensors import tree

STEPS = 3  # the first recorded ones, all of which must show it
_TOKENS, _NODES = 8, 20_000  # of a sequence; of a graph
_HIDES = -1e4  # which is added to the score of a token that is to be hidden
WORDS = (
    "attention sees the tokens that it should predict: the labels are the next tokens of the input, "
    "and no causal mask hides them"
)


@dataclass
class Future:
    """The tokens that the embeddings of a step got, and whether attention sees the next ones, if that is `asked`."""

    asked: bool
    tokens: list[Tensor] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    """For each loss whether its labels are the next tokens, and attention sees them."""
    passes: int = 0

    def enter(self, event: HookEvent) -> None:
        """Note the tokens that an embedding is about to get."""
        is_embedding = self.asked and isinstance(event.module, nn.Embedding)
        received = tree.received(event.args, event.kwargs) if is_embedding else []
        for x in received[:1]:
            if x.dim() == 2 and x.shape[1] >= _TOKENS and tree.is_plain(x):
                self.tokens.append(x.detach())

    def look(self, roots: Sequence[Tensor], choices: Sequence[Choices]) -> None:
        """Look at the labels of a loss, and at the attention on the way to it, as its backward pass begins.

        Waits for nothing.
        """
        self.passes += 1
        labels = labels_in(choices[0].node) if len(choices) == 1 else None
        if labels is None or not tree.is_plain(labels) or roots[0].grad_fn is None:
            return
        asked = [next_ones(x, labels, ignored_label(choices[0].node)) for x in self.tokens]
        lengths = {x.shape[1] for x, one in zip(self.tokens, asked, strict=True) if one is not None}
        if len(lengths) == 1 and (shown := shows_next(roots[0].grad_fn, lengths.pop())):
            with torch.no_grad():
                next_tokens = torch.stack([one for one in asked if one is not None]).any()
                self.seen.append(torch.stack([next_tokens, *(one.to(next_tokens.device) for one in shown)]).all())

    def shown(self) -> bool:
        """True if attention sees the tokens that each loss of the step asks for. Waits for an accelerator."""
        return bool(self.passes) and len(self.seen) == self.passes and all(map(bool, self.seen))


def next_ones(tokens: Tensor, labels: Tensor, ignored: int) -> Tensor | None:
    """True if these labels, but for ignored ones, are the next token of each, and tokens differ; None: other sizes."""
    rows, length = tokens.shape
    if labels.numel() not in (rows * length, rows * (length - 1)) or labels.device != tokens.device:
        return None
    with torch.no_grad():
        after, asked = tokens[:, 1:], labels.reshape(rows, -1)[:, : length - 1]
        counts = asked != ignored
        mostly = 2 * counts.sum() >= counts.numel()
        return ((after == asked) | ~counts).all() & mostly & (after != tokens[:, :-1]).any()


def shows_next(loss: Node, length: int) -> list[Tensor]:
    """For each attention over so many tokens whether all of them see the next one; empty without attention.

    Waits for nothing.
    """
    found = []
    for node in islice(walk([loss]), _NODES):
        if operator(node) in ("Softmax", "SafeSoftmax") or operator(node).startswith("ScaledDotProduct"):
            found += [sees_next(*known) for known in [attended(node, length)] if known is not None]
    return found


def sees_next(weights: Tensor | None, bias: Tensor | None, causal: bool) -> Tensor:
    """True if attention with these weights, or with this mask, sees the next token of each token but the last."""
    with torch.no_grad():
        if weights is not None:
            return (weights.detach().diagonal(1, -2, -1) > 0).all()
        if bias is None or causal:
            return torch.tensor(not causal)
        steps = bias.detach().diagonal(1, -2, -1)
        return (steps if steps.dtype == torch.bool else steps > _HIDES).all()
