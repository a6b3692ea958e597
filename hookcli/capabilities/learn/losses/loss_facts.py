"""The facts that the graphs of a step's losses tell: which losses they are, and their targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from hookcli.capabilities.learn.losses.class_shares import counts_of
from hookcli.capabilities.learn.losses.pairs import paired
from hookcli.capabilities.learn.losses.picked import of_other_rows, same_column
from hookcli.capabilities.learn.losses.ranges import (
    Unlikely,
    beyond,
    flat_cosines,
    ignoring_all,
    no_alignment,
    no_divergence,
    no_probabilities,
    words_on,
)
from hookcli.capabilities.learn.losses.rebuilt import Place, outweighed, place_of
from hookcli.capabilities.learn.losses.redrawn import likeness
from hookcli.capabilities.learn.losses.returned import Returned, errors_of
from hookcli.capabilities.learn.losses.squashed import squashed
from hookcli.capabilities.learn.losses.targets import Targets
from hookcli.capabilities.learn.losses.unsigned import without_signs
from hookcli.capabilities.learn.losses.views import misplaced
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.losses import (
    Choices,
    Term,
    choices_of,
    class_weights,
    ignored_label,
    is_over_rows,
    labels_in,
    labels_of,
    maximized,
    smoothed,
    terms_of,
)
from hookcli.hooks.torch_private.nodes import operator, returned_shape
from hookcli.probes.shared.doubled import ARRANGES, doubled, nodes_of_losses, sources
from hookcli.table.formatting import shape as shape_text
from hookcli.tensors import tree

_LAYERS = ("Addmm", "Mm", "Linear", "MkldnnLinear", "Convolution")
_SOME = 4096  # labels of a loss of which one may repeat
_SMOOTH = 0.8  # of the labels, where 0.1 is usual
_ROWS = 8  # labels of a batch that say whether it has one class alone


class LabelRange(NamedTuple):
    """The least and the largest label that count in the losses of a step, how many count, and how many there are."""

    least: int
    largest: int
    counted: int
    number: int
    of_classes: bool = True
    """True if two rows of a loss are of one class, and not all are: of contrastive ones all are, or none."""

    def one_class(self) -> int | None:
        """The class of all labels that count; -1 if they differ, None if there are few labels."""
        if self.number < _ROWS:
            return None
        return self.least if self.least == self.largest else -1


@dataclass
class LossFacts:
    """The losses of a step, each taken in as its backward pass begins; figures stay on the device."""

    choices: list[Sequence[Choices]] = field(default_factory=list)
    """For each backward pass the cross-entropies that are its loss; empty if that is another one."""
    targets: Targets = field(default_factory=Targets)
    maximized: str = ""
    misused: str = ""
    doubled: str = ""
    shape: list[int] = field(default_factory=list)
    """The shape of the targets of the only loss; empty if it is not known."""
    scale: Tensor | None = None
    """The scale of the GradScaler that has scaled the last loss."""
    received: set[Place] = field(default_factory=set)
    """The places of the inputs of the step."""
    inputs: list[Tensor] = field(default_factory=list)
    """These, until the first backward pass."""
    noise: tuple[Tensor, int] | None = None
    """How the targets, if they are noise, are correlated with the input, and their number."""
    returned: Returned = field(default_factory=Returned)
    of_layers: bool = True
    """True if the scores of all cross-entropies are what a trained layer returns for each class."""
    _counts: list[Tensor] = field(default_factory=list)
    """How often each class is a label of each cross-entropy; for those whose labels are known, and not smoothed."""
    _beyond: tuple[str, Tensor] | None = None
    _unlikely: list[Unlikely] = field(default_factory=list)
    _outweighed: tuple[str, Tensor] | None = None
    _labels: list[tuple[int, Tensor]] = field(default_factory=list)
    """The number of labels in each loss, and the figures of `range_of`."""
    _times: list[Tensor | float] = field(default_factory=list)
    """How often the mean of each cross-entropy counts in the loss, where that is known."""

    def receive(self, x: Tensor) -> None:
        """Note a tensor that the model receives."""
        self.received.add(place_of(x))
        self.inputs += [x.detach()] if x.is_floating_point() and not self.choices else []

    def add(self, roots: Sequence[Tensor]) -> Sequence[Term]:
        """Take in the losses of a backward pass. Returns the terms of its only one, if known. Waits for nothing."""
        ends = [root.grad_fn for root in roots if root.grad_fn is not None]
        nodes = [*nodes_of_losses(ends)]
        self.misused = self.misused or misused(roots, nodes)
        self.doubled = self.doubled or twice(nodes)
        self._beyond = self._beyond or beyond(roots, nodes)
        alone = len(roots) == 1
        choices = choices_of(roots[0]) if alone else []
        terms = terms_of(roots[0]) if alone else []
        unlikely = (
            *no_alignment(ends),
            no_probabilities(roots, nodes),
            no_divergence(roots, terms),
            flat_cosines(choices),
            without_signs(ends),
        )
        picked = (of_other_rows(roots, nodes), same_column(choices))
        self._unlikely += [*ignoring_all(roots, nodes), *filter(None, (*unlikely, *picked))]
        self.choices.append(choices)
        self.note_targets(roots[0] if alone else None, terms)
        self.returned.let_go()
        self.note_choices(choices, smooth=any(map(smoothed, nodes)))
        if alone and not choices:
            self.note_labels(labels_of(roots[0]), None)
        return terms

    def note_choices(self, choices: Sequence[Choices], *, smooth: bool) -> None:
        """Note how often the cross-entropies of a loss count, and their labels, which may be smoothed."""
        self.of_layers = self.of_layers and all(map(is_of_layer, choices))
        if not smooth and len(choices) == 1 and (counts := counts_of(choices[0])) is not None:
            self._counts.append(counts)  # of several the labels may have other shares
        for one in choices:
            if (times := times_counted(one) if one.summed else one.factor) is not None:
                self._times.append(times)
            if not ranks(one):
                self.note_labels(labels_that_count(one.node), ignored_label(one.node))

    def note_labels(self, labels: Tensor | None, ignored: int | None) -> None:
        if labels is not None and tree.is_plain(labels) and labels.numel():
            self._labels.append((labels.numel(), range_of(labels, ignored)))

    def note_targets(self, loss: Tensor | None, terms: Sequence[Term]) -> None:
        """Note the targets of a loss of these terms, if a backward pass begins from it alone; None: from several."""
        only = loss if len(self.choices) == 1 else None
        shape = self.targets.add(terms) if not self.choices[-1] else []
        if pair := errors_of(terms[0].node) if len(terms) == 1 and shape else None:
            self.noise = likeness(pair[1], self.inputs)
        self.inputs.clear()
        labels = labels_of(only) if only is not None and not shape else None
        self.shape = tree.shape_of(labels) if labels is not None else shape if only is not None else []
        self.maximized = maximized(only) if only is not None else ""
        self._outweighed = outweighed(only, self.received) if only is not None else None

    def label_range(self) -> LabelRange | None:
        """The labels of the step; None if they are not known. Waits for an accelerator."""
        figures = [one.tolist() for _, one in self._labels]
        if not any(counted for _, _, counted, _ in figures):
            return None
        least, largest, counted, twice = zip(*figures, strict=True)
        number = sum(number for number, _ in self._labels)
        of_classes = any(twice) and min(least) < max(largest)
        return LabelRange(min(least), max(largest), sum(counted), number, of_classes)

    def counts(self) -> Sequence[Tensor]:
        """How often each class is a label of each cross-entropy of the step; empty if that is not known of all."""
        number = sum(map(len, self.choices))
        return self._counts if len(self._counts) == number else []

    def level(self, passes: int, labels: LabelRange | None) -> dict[str, Any]:
        """The fields of a line on the cross-entropies of the step, whose sum is its loss; empty for other losses.

        `passes`: the backward passes that count for the step; others may belong to other models.
        """
        every = [one for choices in self.choices for one in choices]
        if len(self.choices) != max(passes, 1) or not all(self.choices) or len({one.classes for one in every}) != 1:
            return {}
        if len(self._times) < len(every):
            return {}
        classes = every[0].classes
        contrastive = any(one.items <= classes for one in every) and not (labels and labels.of_classes)
        items = (min if contrastive else sum)(one.items for one in every)
        return {
            "classes": classes,
            "items": items,
            "scaled": math.fsum(map(float, self._times)),
            "passes": len(self.choices),
        }

    def fields(self, passes: int, *, targets_of_models: bool, several: bool) -> dict[str, Any]:
        """The fields of a line. Waits for an accelerator.

        `passes`: the backward passes that count for the step; others may belong to other models.
        `targets_of_models`: others run beside the model, whose outputs may be its targets, or which it may attack.
        `several`: the model has several optimizers, which may work against each other.
        """
        self.misused = self.misused or words_on(self._unlikely)
        fields: dict[str, Any] = {"misused": self.misused, "doubled": self.doubled, "broadcast": self.targets.broadcast}
        fields["maximized"] = "" if several or targets_of_models else self.maximized
        all_count = len(self.choices) == max(passes, 1)
        if all_count and not targets_of_models:
            fields |= self.targets.of_squares(len(self.choices))
        if self._beyond is not None and not targets_of_models:
            fields |= {"bounded": self._beyond[0], "beyond": float(self._beyond[1])}
        if self._outweighed is not None and not several:
            fields |= {"outweighed": self._outweighed[0], "unexplained": float(self._outweighed[1])}
        if all_count and not several:
            fields |= self.targets.of_ones(len(self.choices))
        if self.noise is not None and not math.isnan(like := float(self.noise[0])):
            fields |= {"noise": self.noise[1], "in_input": like}
        if self.scale is not None:
            fields["scale"] = float(self.scale)
        return fields


def times_counted(choices: Choices) -> Tensor | None:
    """How often the mean of a summed cross-entropy counts: its factor for each label; None if that is not known.

    A label counts as often as the weight of its class says. Waits for nothing.
    """
    node = choices.node
    labels, weights = labels_in(node), class_weights(node)
    if labels is None or not tree.is_plain(labels):
        return None
    with torch.no_grad():
        counts = labels != ignored_label(node)
        if weights is None:
            return choices.factor * counts.sum()
        return choices.factor * (weights_of(labels, weights) * counts).sum()


def labels_that_count(node: Node) -> Tensor | None:
    """The labels of a cross-entropy, with the one that is ignored in place of those whose class has a weight of 0."""
    labels, weights = labels_in(node), class_weights(node)
    if labels is None or weights is None or not tree.is_plain(labels):
        return labels
    with torch.no_grad():
        return labels.long().where(weights_of(labels, weights) != 0, ignored_label(node))


def weights_of(labels: Tensor, weights: Tensor) -> Tensor:
    """The weight of each label's class; any for a label that is none, such as an ignored one. Waits for nothing."""
    return weights.detach()[labels.long().clamp(0, len(weights) - 1)]  # bytes would be a mask


def ranks(choices: Choices) -> bool:
    """True if a layer returned one score for each class: candidates, of which the right one may always come first."""
    softmaxes = (one for one in walk([choices.node]) if operator(one) == "LogSoftmax")
    scores = sources(next(softmaxes, choices.node))
    return choices.classes > 1 and any(
        returned_shape(one)[-1:] == (1,) and operator(one) not in ARRANGES for one in scores
    )


def is_of_layer(choices: Choices) -> bool:
    """True if a layer with trained weights returns one score for each class."""
    softmaxes = (one for one in walk([choices.node]) if operator(one) == "LogSoftmax")
    layers = (one for one in sources(next(softmaxes, choices.node)) if operator(one) in _LAYERS)
    weights = (returned_shape(leaf) for layer in layers for leaf in leaves_of(layer))
    return any(shape[:1] == (choices.classes,) for shape in weights)


def leaves_of(layer: Node) -> Iterator[Node]:
    """The parameters that a layer multiplies or adds, which may be transposed before."""
    for before, _ in layer.next_functions:
        node = before
        while node is not None and operator(node) in ARRANGES:
            node = node.next_functions[0][0]
        if node is not None and operator(node) == "AccumulateGrad":
            yield node


def range_of(labels: Tensor, ignored: int | None) -> Tensor:
    """The least and the largest label of those that are not `ignored`, how many these are, and whether one repeats.

    Waits for nothing.
    """
    with torch.no_grad():
        known = labels.detach().long()
        limits = torch.iinfo(torch.int64)
        counts = torch.ones_like(known, dtype=torch.bool) if ignored is None else known != ignored
        least, largest = (torch.where(counts, known, limit) for limit in (limits.max, limits.min))
        some = known.flatten()[:_SOME].sort().values
        twice = (some[1:] == some[:-1]) & (some[1:] != (limits.min if ignored is None else ignored))
        return torch.stack([least.amin(), largest.amax(), counts.sum(), twice.any()])


def misused(roots: Sequence[Tensor], nodes: Sequence[Node]) -> str:
    """Words on a loss of these `nodes` that gets something else than it expects; "" if none does."""
    if any(map(is_over_rows, roots)):
        return "log_softmax is taken over the rows of the batch (dim=0), not over the classes"
    if words := squashed(roots):
        return words
    shares = (one.share for root in roots if root.grad_fn is not None and (one := smoothed(root.grad_fn)))
    if (share := max(shares, default=0.0)) >= _SMOOTH:
        return (
            f"cross_entropy has a label_smoothing of {share:.3g}, which leaves the labels {1 - share:.0%} of the weight"
        )
    if pair := next(filter(None, map(paired, roots)), None):
        before, after = map(shape_text, pair)
        return f"in the loss, outputs of shape {before} and other values are broadcast to {after}: give both one shape"
    return next(filter(None, map(misplaced, nodes)), "")


def twice(nodes: Sequence[Node]) -> str:
    """Words on a softmax or sigmoid that goes into a loss which has one in it; "" if none does (HK034)."""
    return next((f"the output of a {one.name} goes into {one.goes_into}" for one in doubled(nodes)), "")
