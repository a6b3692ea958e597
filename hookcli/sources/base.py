"""The interface of a source."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from hookcli.errors import NoGradientsError
from hookcli.table.meta import Meta

if TYPE_CHECKING:
    from PIL.Image import Image

Loss = Callable[[Any], Tensor]
"""Maps a model's output to a scalar."""
Arguments = tuple[object, ...] | dict[str, Any]
"""A model's arguments: all positional, or all by keyword."""
Transforms = Callable[["Image"], Tensor]
"""Turns a picture into one item of the model's first input, without the batch dimension."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The shape and dtype of one input tensor; `dtype` None means the run's floating-point dtype.

    Random integers are drawn below `high`, such as the size of a vocabulary.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    high: int = 2

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        return size if self.dtype is None else f"{size}:{str(self.dtype).removeprefix('torch.')}"


def one_list(tensors: Sequence[Tensor]) -> Arguments:
    """All tensors in one argument, a list."""
    return (list(tensors),)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Instructions for building a model and its input.

    `build` may be called several times and under a device context (`with torch.device("meta")`); it downloads nothing.
    `inputs` is the model's natural input, None if the source does not know it. `example` returns the example arguments
    that a model from `build` comes with, if any. `arrange` turns tensors, in the order of `inputs`, into arguments (a
    detector takes one list of images, Hugging Face's models take keywords); `arrange_training` adds targets for a
    training step. `batched`: dimension 0 of each input is the batch; otherwise each input is one item of the batch.
    `fixed_batch`: inputs of another batch than theirs fail. `frozen` says why the model gets
    neither other weights nor gradients; "" if it may.
    `loss` and `loss_name` suit the model's output (None: its sum). `build_filled(strict)` builds the model with the
    published weights that the request names, from disk only, and returns a remark on those that do not fit unless
    `strict`. `ready` is the model itself if the spec names an existing one; `build` then makes copies, which lack its
    parameters' hooks. `transforms` makes the function that prepares a picture for the model, as its weights were
    evaluated; `tokenizer` makes the model's tokenizer, called as Hugging Face's are; None: the source knows none.
    `meta` adds entries to the `meta` of reports.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[InputSpec, ...] | None = None
    example: Callable[[nn.Module], Arguments | None] | None = None
    arrange: Callable[[Sequence[Tensor]], Arguments] = tuple  # each as a positional argument
    arrange_training: Callable[[Sequence[Tensor]], Arguments] | None = None
    batched: bool = True
    fixed_batch: bool = False
    frozen: str = ""
    loss: Loss | None = None
    loss_name: str = "sum"
    build_filled: Callable[[bool], tuple[nn.Module, str | None]] | None = None
    ready: nn.Module | None = None
    transforms: Callable[[], Transforms] | None = None
    tokenizer: Callable[[], Callable[..., Mapping[str, object]]] | None = None
    meta: Meta = field(default_factory=Meta)

    def require_gradients(self, wanted: bool) -> None:
        """Raise NoGradientsError if gradients are wanted of a frozen model."""
        if wanted and self.frozen:
            raise NoGradientsError(f"no gradients: {self.frozen}")


def copy_model(model: nn.Module) -> nn.Module:
    """A deep copy, whose parameters are leaves with the model's `requires_grad` (TorchScript's would not be)."""
    with torch.no_grad():
        copied_model = copy.deepcopy(model)
    for parameter, own in zip(copied_model.parameters(), model.parameters(), strict=True):
        if parameter.requires_grad != own.requires_grad:
            parameter.requires_grad_(own.requires_grad)
    return copied_model


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a source: the spec without the source's prefix, the callable's arguments, the weights' name.

    `task` chooses among the architectures of one name, such as `sequence-classification`; None: the source's choice.
    """

    spec: str
    args: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    task: str | None = None


class ModelSource(Protocol):
    """Turns a spec into a recipe.

    A source registered as `NAME` serves the specs `NAME:REST`; `recipe` receives the REST. It raises UsageError for a
    spec that it can't serve, and builds nothing heavy before `Recipe.build` is called. A source whose models have
    tasks (`--task`) has the class attribute `has_tasks`, which is True.
    """

    def recipe(self, request: Request) -> Recipe:
        """Return the recipe for a spec, without building the model."""
