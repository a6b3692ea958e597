"""Compares the outputs of a model under a change with the outputs of the model as it is."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from torch import Tensor

from hookcli.sources.losses import dotted
from hookcli.tensors import tree
from hookcli.tensors.distance import compare, resolve

_NOT_RESULTS = ("loss", "past_key_values", "hidden_states", "attentions")
"""Ends of names (`decoder_hidden_states`) of what models of Transformers return beside their results."""
_KEY = re.compile(r'\["([^"\]]*)"\]')

_TOKENS = 3  # dimensions of the scores of tokens; more are images
LITTLE = 0.05
"""Of a figure, or of the output: a change by less says nothing of where it comes from, and leaves the output alike."""


@dataclass
class Outputs:
    """The floating-point tensors that the model returns as it is, by their path, without those that are not results.

    `aside`: the names of the items that were left out.
    """

    first: dict[str, Tensor] = field(default_factory=dict)
    aside: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, output: object) -> Outputs:
        leaves, results, aside = floating_leaves(output), dict[str, Tensor](), dict[str, None]()
        for path, x in leaves.items():
            if name := next((name for name in dotted(path).split(".") if name.endswith(_NOT_RESULTS)), ""):
                aside[name] = None
            else:
                results[path] = x
        first = {path: x.detach().clone() for path, x in (results or leaves).items()}
        return cls(first, [*aside] if results else [])

    def distances(self, output: object) -> dict[str, float] | None:
        """The relative l2 distance of each output, infinite where NaN or Inf came; None if one has another shape."""
        leaves = floating_leaves(output)
        if any(path not in leaves or leaves[path].shape != x.shape for path, x in self.first.items()):
            return None
        distances = {}
        for path, x in self.first.items():
            if pending := compare(x, leaves[path]):
                (discrepancy,) = resolve([pending])
                distances[path] = math.inf if discrepancy.nonfinite else discrepancy.rel_l2
        return distances

    def same_top(self, output: object) -> float | None:
        """The share of places at which the output's largest value stays in the same class; None without classes.

        That is the output named logits, or a lone one. Classes are the channels of images, else the last of two or more
        dimensions.
        """
        named = [path for path in self.first if "logits" in path] or list(self.first)
        if len(named) > 1 or not named:
            return None
        x, y = self.first[named[0]], floating_leaves(output).get(named[0])
        dim = 1 if x.dim() > _TOKENS else -1
        if y is None or y.shape != x.shape or x.is_complex() or x.dim() < 2 or x.size(dim) < 2 or not x.numel():
            return None
        return float((x.argmax(dim) == y.detach().argmax(dim)).float().mean())

    def with_nan(self) -> str | None:
        """The path of the first output that is NaN somewhere as it is; None if there is none."""
        return next((path for path, x in self.first.items() if x.isnan().any()), None)

    def in_words(self, path: str | None = None) -> str:
        """One of several outputs by its name; a lone one, or all of them, as `the output`."""
        if path is None and len(self.first) > 1:
            return "the output"
        path = next(iter(self.first)) if path is None else path
        return f"output {short(path)}" if path else "the output"


def floating_leaves(output: object) -> dict[str, Tensor]:
    """Each floating-point or complex tensor of an output, by the first of its paths."""
    leaves, seen = dict[str, Tensor](), set[int]()
    for path, x in tree.leaves(output):
        if (x.is_floating_point() or x.is_complex()) and id(x) not in seen:
            seen.add(id(x))
            leaves[path] = x
    return leaves


def short(path: str) -> str:
    """The path of an output as one would write it: logits, [0], boxes[1]."""
    return _KEY.sub(r".\1", path).lstrip(".")
