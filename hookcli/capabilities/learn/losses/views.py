"""Scores that a view has put in the wrong order: their columns are not classes, or their rows are not the labels'."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch.autograd.graph import Node

from hookcli.hooks.torch_private.losses import labels_in
from hookcli.hooks.torch_private.nodes import operator, returned_shape
from hookcli.table.formatting import shape as shape_text
from hookcli.tensors import tree

Shape = tuple[int, ...]
_LOSSES = ("NllLoss", "NllLoss2D")
_VIEWS = ("View", "UnsafeView", "ReshapeAlias")
_ARRANGES = (*_VIEWS, "Clone", "ToCopy")  # keep the order of values
_CHANNELS = ("Convolution", "UpsampleBilinear2D", "UpsampleNearest2D", "UpsampleBicubic2D", "UpsampleTrilinear3D")
"""Dimension 1 of what these return always is the channels'."""
CROSSED = (
    "the scores of cross_entropy are {}, and its labels {}, before both are flattened: most scores meet the label of "
    "another place; transpose one of them first"
)


def misplaced(loss: Node) -> str:
    """Words on scores of this cross-entropy that a view has put in the wrong order; "" for others."""
    if pair := turned(loss):
        before, after = map(shape_text, pair)
        return f"the scores of cross_entropy are {before} viewed as {after}: permute the classes to dimension 1 instead"
    way = in_order(loss)
    if not way:
        return ""
    if pair := viewed(way):
        before, after = map(shape_text, pair)
        what = f"the scores of cross_entropy are {before} viewed as {after}"
        return f"{what}: a column is not a class; permute the classes to the end first"
    if pair := crossed(loss, way):
        return CROSSED.format(*map(shape_text, pair))
    return ""


def turned(loss: Node) -> tuple[Shape, Shape] | None:
    """The shapes of scores (N, ..., C) and of the view (N, C, ...) of them that a cross-entropy got; else None."""
    scores = loss
    while operator(scores) in (*_LOSSES, *_VIEWS) and scores.next_functions[0][0] is not None:
        scores = scores.next_functions[0][0]
    after = returned_shape(scores)
    if operator(scores) != "LogSoftmax" or len(after) < 3:
        return None
    before = (after[0], *after[2:], after[1])
    node, output = scores.next_functions[0]
    shapes = []
    while node is not None and operator(node) in _ARRANGES:
        node, output = node.next_functions[0]
        shapes.append(returned_shape(node, output))
    all_at_once = shapes[-1:] == [(after[0], prod(after[1:]))]  # a layer may learn any order
    return (before, after) if before != after and before in shapes and not all_at_once else None


def in_order(loss: Node) -> list[tuple[Node, tuple[int, ...]]]:
    """The nodes of the scores (M, C) of a cross-entropy, each with the shape that it returned, in the order of a walk.

    All but the last, which computed or moved values, keep their order. Empty for other nodes.
    """
    scores = loss.next_functions[0][0] if operator(loss) == "NllLoss" else None
    if scores is None or operator(scores) != "LogSoftmax" or len(returned_shape(scores)) != 2:
        return []
    way = []
    node, output = scores.next_functions[0]
    while node is not None:
        way.append((node, returned_shape(node, output)))
        if operator(node) not in _ARRANGES:
            break
        node, output = node.next_functions[0]
    return way


def viewed(way: Sequence[tuple[Node, Shape]]) -> tuple[Shape, Shape] | None:
    """The shapes of scores (N, C, ...) and of the view (M, C) of them that a cross-entropy got in this way; else None.

    A row of such a view has the scores of one class at C places, where it should have the scores of C classes at one.
    """
    (_, after), (source, before) = way[0], way[-1]
    if not any(operator(node) in _VIEWS for node, _ in way):
        return None
    return (before, after) if mixes(before, after[1], channels=operator(source) in _CHANNELS) else None


def crossed(loss: Node, way: Sequence[tuple[Node, Shape]]) -> tuple[Shape, Shape] | None:
    """The shapes of scores (T, B, C) and labels (B, T) that a cross-entropy got as T * B rows, as where time is first.

    None for others, and where the labels were copied as they were flattened: then their shape is not known.
    """
    scores = next((shape for _, shape in way if len(shape) == 3), ())
    labels = labels_in(loss)
    if not scores or labels is None or labels.dim() != 1:
        return None
    first, second, _ = scores
    whole = tree.base(labels)  # of which the labels may be some rows
    is_rows = whole.dim() == 2 and whole.is_contiguous() and labels.storage_offset() % first == 0
    if not is_rows or whole.shape[1] != first or second in (1, first) or labels.numel() != first * second:
        return None
    return scores, (second, first)


def mixes(shape: tuple[int, ...], classes: int, *, channels: bool) -> bool:
    """True if scores have the shape (N, classes, ...), and in their order so many values in a row are not one choice.

    They may be one if the last dimensions have as many places, as in heat maps, or a multiple of it, unless
    dimension 1 is known to be the `channels`.
    """
    places = [prod(shape[n:]) for n in range(2, len(shape))]
    if shape[1:2] != (classes,) or classes < 2 or not places or places[0] < 2 or classes in places:
        return False
    return channels or places[0] % classes > 0
