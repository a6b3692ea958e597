"""Values that an index picks along the wrong dimension, and labels that do not pick a row's own column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.capabilities.learn.losses.ranges import Unlikely, compares, has_layer, unscaled
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import Choices, labels_in, multiplied_matrices
from hookcli.hooks.torch_private.nodes import gathered, operator, returned_shape
from hookcli.probes.shared.doubled import ARRANGES
from hookcli.tensors import tree

_ROWS, _LOOKED_AT = 8, 64  # rows at least; nodes
_OF_ERRORS = {
    *("MseLoss", "SmoothL1Loss", "HuberLoss", "Pow", "Abs", "Add", "Sub", "Mul", "Div", "Neg", "Mean", "Sum"),
    *("Exp", "Clamp", "Minimum"),
}


def of_other_rows(losses: Iterable[Tensor], nodes: Sequence[Node]) -> Unlikely | None:
    """Words on a gather(0, index) of rows of values, whose index of one column seems to hold columns; else None.

    All are below the number of columns, of which each row's index would be by chance in less than half of all cases.
    `nodes` are those that sum the terms of the losses. Waits for nothing.
    """
    on_the_way = walk(compares(losses, nodes), lambda node: operator(node) in _OF_ERRORS | ARRANGES)
    for node in islice(on_the_way, _LOOKED_AT):
        dim, index = gathered(node) or (None, None)
        shape = returned_shape(*node.next_functions[0]) if dim == 0 else ()
        if index is None or len(shape) != 2 or tuple(index.shape) != (shape[0], 1) or not tree.is_plain(index):
            continue
        rows, columns = shape
        if columns > 1 and rows >= max(_ROWS, 2 * columns):
            what = f"gather(0, index) of {rows:,}x{columns:,} values takes their first column from other rows"
            text = f"{what}, and all {rows:,} indices are below {columns:,}: use gather(1, index) for columns"
            with torch.no_grad():
                return Unlikely(text, (index < columns).all(), 0.0)
    return None


def same_column(choices: Sequence[Choices]) -> Unlikely | None:
    """Words on N x N products of two batches of N rows, if all labels of their cross-entropy are the same; else None.

    Waits for nothing.
    """
    for one in choices:
        node, _ = unscaled(one)
        labels = labels_in(one.node)
        square = returned_shape(node) == (one.classes, one.classes) and one.classes >= _ROWS
        if node is None or not square or multiplied_matrices(node) is None or has_layer(node, one.classes):
            continue
        if labels is not None and labels.numel() == one.classes and tree.is_plain(labels):
            size = f"{one.classes:,}x{one.classes:,}"
            what = f"the scores of cross_entropy are the {size} products of the rows of two batches"
            text = f"{what}, and all labels are one number: the label of row n is n, as in torch.arange({one.classes})"
            return Unlikely(text, (labels == labels[0]).all(), 0.0)
    return None
