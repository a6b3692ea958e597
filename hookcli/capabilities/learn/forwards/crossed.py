"""Scores (T, B, C) and labels (B, T) that are flattened as they are, as the tokens of the step tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hookcli.capabilities.learn.losses.views import CROSSED, in_order
from hookcli.hooks.events import HookEvent
from hookcli.hooks.torch_private.losses import Choices, labels_in
from hookcli.table.formatting import shape as shape_text
from hookcli.tensors import tree

_TOKENS, _ROWS = 64, 8  # calls of embeddings, and rows of a batch


@dataclass
class Crossed:
    """The tokens that embeddings got in a step, and whether they tell that labels have another order than scores."""

    tokens: list[Tensor] = field(default_factory=list)
    shown: list[tuple[str, Tensor]] = field(default_factory=list)

    def enter(self, event: HookEvent) -> None:
        """Note the tokens that an embedding is about to get."""
        if isinstance(event.module, nn.Embedding) and len(self.tokens) < _TOKENS:
            self.tokens += filter(tree.is_plain, tree.received(event.args, event.kwargs)[:1])

    def look(self, choices: Sequence[Choices]) -> None:
        """Look at the labels of a loss, as its backward pass begins. Waits for nothing."""
        node = choices[0].node if len(choices) == 1 else None
        labels = labels_in(node) if node is not None else None
        scores = next((shape for _, shape in in_order(node) if len(shape) == 3), ()) if node is not None else ()
        if labels is None or not scores or not tree.is_plain(labels):
            return
        length, rows, _ = scores
        if length != rows and rows >= _ROWS and labels.numel() == length * rows:
            words = CROSSED.format(shape_text(scores), shape_text((rows, length)))
            self.shown += [
                (words, one) for x in self.tokens if (one := are_crossed(x, labels, length, rows)) is not None
            ]

    def words(self) -> str:
        """Words on scores that meet the labels of other places; "" if none do. Waits for an accelerator."""
        return next((words for words, crossed in self.shown if bool(crossed)), "")


def are_crossed(tokens: Tensor, labels: Tensor, length: int, rows: int) -> Tensor | None:
    """True if tokens (rows), or some of those of several places, are a column of labels (rows, length), in that order.

    And not a row of (length, rows). None for other sizes.
    """
    x = tokens.t() if tokens.dim() == 2 and len(tokens) == rows else tokens[None] if tokens.dim() == 1 else tokens
    if x.dim() != 2 or x.shape[1] != rows or x.device != labels.device:
        return None
    with torch.no_grad():
        x = x[:_TOKENS, None]
        differ = (x != x[..., :1]).any(-1)
        across = ((labels.reshape(rows, length).t() == x).all(-1) & differ).any()
        in_order = ((labels.reshape(length, rows) == x).all(-1) & differ).any()
        return across & ~in_order
