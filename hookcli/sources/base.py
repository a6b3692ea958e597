"""The interface of a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Loss = Callable[[Any], Tensor]
"""From what the model returned to a scalar."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One tensor that the model takes. `dtype` None is the run's floating-point dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        return size if self.dtype is None else f"{size}:{str(self.dtype).removeprefix('torch.')}"


def positional(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Each tensor as an argument of its own."""
    return tuple(tensors)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a model and what it takes.

    `build` may be called more than once and under a device context (`with torch.device("meta")`). It downloads nothing.
    `inputs` is the model's natural input; None where the source can't know it.
    `example` gives the arguments that a model that `build` made brings along, if it does: a tuple, or keywords.
    `arrange` makes the positional arguments of the tensors (a detector takes one list of images), `arrange_training`
    those of a training step (with the targets). `batched` tells whether dimension 0 of each input is the batch;
    otherwise each input is one item of it.
    `loss` and `loss_name` are what suits the model's output for gradients (None: the sum of it).
    `build_filled` makes the model with the published weights that were asked for, from disk only.
    `ready` is the model itself where the spec names one that exists already; `build` then makes copies of it, which
    lack its parameters' hooks.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[InputSpec, ...] | None = None
    example: Callable[[nn.Module], tuple[Any, ...] | dict[str, Any] | None] | None = None
    arrange: Callable[[Sequence[Tensor]], tuple[Any, ...]] = positional
    arrange_training: Callable[[Sequence[Tensor]], tuple[Any, ...]] | None = None
    batched: bool = True
    loss: Loss | None = None
    loss_name: str = "sum"
    build_filled: Callable[[], nn.Module] | None = None
    ready: nn.Module | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked of a source: the spec without the source's prefix, the callable's arguments, a weights name."""

    spec: str
    args: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None


class ModelSource(Protocol):
    """Turns a spec into a recipe.

    A source registered as `NAME` gets the specs `NAME:REST`, and `recipe` the REST. Raises UsageError for a spec that
    it can't serve. Nothing heavy is built before `Recipe.build` is called.
    """

    def recipe(self, request: Request) -> Recipe:
        """Return the recipe for a spec, without building the model."""
