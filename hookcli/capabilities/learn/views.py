"""Scores that were viewed where they should have been permuted: then their columns are not classes."""

from __future__ import annotations

from math import prod

from torch.autograd.graph import Node

from hookcli.hooks.torch_private.nodes import operator, returned_shape

_VIEWS = ("View", "UnsafeView", "ReshapeAlias")
_ARRANGES = (*_VIEWS, "Clone", "ToCopy")  # keep the order of values
_CHANNELS = ("Convolution", "UpsampleBilinear2D", "UpsampleNearest2D", "UpsampleBicubic2D", "UpsampleTrilinear3D")
"""Dimension 1 of what these return always is the channels'."""


def viewed(loss: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes of scores (N, C, ...) and of the view (M, C) of them that this cross-entropy got; else None.

    A row of such a view has the scores of one class at C places, where it should have the scores of C classes at one.
    """
    scores = loss.next_functions[0][0] if operator(loss) == "NllLoss" else None
    after = returned_shape(scores)
    if scores is None or operator(scores) != "LogSoftmax" or len(after) != 2:
        return None
    (source, output), is_view = scores.next_functions[0], False
    while source is not None and operator(source) in _ARRANGES:
        is_view = is_view or operator(source) in _VIEWS
        source, output = source.next_functions[0]
    if source is None or not is_view:
        return None
    before = returned_shape(source, output)
    return (before, after) if mixes(before, after[1], channels=operator(source) in _CHANNELS) else None


def mixes(shape: tuple[int, ...], classes: int, *, channels: bool) -> bool:
    """True if scores have the shape (N, classes, ...), and in their order so many values in a row are not one choice.

    They may be one if the last dimensions have as many places, as in heat maps, or a multiple of it, unless
    dimension 1 is known to be the `channels`.
    """
    places = [prod(shape[n:]) for n in range(2, len(shape))]
    if shape[1:2] != (classes,) or classes < 2 or not places or places[0] < 2 or classes in places:
        return False
    return channels or places[0] % classes > 0
