"""From a recipe to a model on a device, filled and cast, with its input. Shapes alone need no device at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from hookcli import failure, tree
from hookcli.errors import HookcliError, ModelError, UsageError
from hookcli.hooks import parameters_on_meta
from hookcli.sources.base import InputSpec, Recipe
from hookcli.sources.inputs import input_specs, make_tensor
from hookcli.sources.weights import fill, is_file, read_state

META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Setting:
    """How to set a model up: what the options of a command say, parsed."""

    inputs: Sequence[InputSpec] = ()
    batch: int | None = None
    natural_batch: int = 1
    fill: str = "randn"
    seed: int = 0
    weights: str | None = None
    strict: bool = True
    train: bool = False
    targets: bool = False
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a device is immutable
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model and the positional arguments to call it with."""

    model: nn.Module
    args: tuple[Any, ...]
    described: str
    """The input in words: 2x3x224x224, or with targets for a detector in training."""
    remark: str | None = None


def parse_device(name: str) -> torch.device:
    """A device that is there. Raises UsageError for any other, naming those that are."""
    try:
        device = torch.device(name)
        if device.type != "meta":
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"--device {name}: not there; there is {', '.join(_devices())}") from error
    return device


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    count = torch.accelerator.device_count() if accelerator else 0
    return ["cpu", "meta", *(f"{accelerator}:{i}" for i in range(count))]


def prepare(recipe: Recipe, setting: Setting) -> Prepared:
    """Build the model, fill and cast it, and make its input. Raises ModelError where its own code fails."""
    torch.manual_seed(setting.seed)
    model = _built(recipe, setting.device)
    remark = _load(recipe, model, setting) if setting.weights else None
    model.train(setting.train)
    if setting.dtype != torch.float32:
        model.to(dtype=setting.dtype)
    model.to(setting.device)
    try:
        args, described = _inputs(recipe, model, setting)
    except (RuntimeError, MemoryError) as error:
        raise ModelError(f"making the input of {recipe.name} failed: {failure.describe(error)}") from error
    return Prepared(model, args, described, remark)


def _built(recipe: Recipe, device: torch.device) -> nn.Module:
    if device != META:
        return _call(recipe.build, recipe.name)
    ways: list[Callable[[], Any]] = [partial(torch.device, "meta"), parameters_on_meta, nullcontext]
    for way in ways[:-1]:
        try:
            with way():
                return recipe.build()
        except HookcliError:
            raise
        except Exception:  # reads a value while it is built: try the next way, and let the last one speak
            continue
    return _call(recipe.build, recipe.name)


def _call(build: Callable[[], nn.Module], name: str) -> nn.Module:
    try:
        return build()
    except HookcliError:
        raise
    except Exception as error:
        raise ModelError(f"building {name} failed: {failure.describe(error)}") from error


def _load(recipe: Recipe, model: nn.Module, setting: Setting) -> str | None:
    """Fill the model. On the meta device a file is only compared, and published weights need not be on disk."""
    name = str(setting.weights)
    if is_file(name):
        return fill(model, read_state(name), setting.strict, name)
    if recipe.state is None:
        known = "only torchvision models have published weights; give a file (.pt, .safetensors)"
        raise UsageError(f"--weights {name}: {known}")
    return fill(model, recipe.state(), setting.strict, name) if setting.device != META else None


def _inputs(recipe: Recipe, model: nn.Module, setting: Setting) -> tuple[tuple[Any, ...], str]:
    specs = input_specs(recipe, setting.inputs, setting.batch, setting.natural_batch)
    if specs is None:
        example = recipe.example(model) if recipe.example else None
        if example is None:
            raise UsageError(f"{recipe.name}: say what it takes, for example --input {_guess(model)}")
        shapes = [tree.shape_text(x) for _, x in tree.leaves(example)]
        return tuple(tree.replace(example, lambda path, x: _cast(x, setting))), f"{', '.join(shapes)} (its example)"
    tensors = [
        make_tensor(spec, setting.fill, setting.dtype, setting.device, setting.seed + number)
        for number, spec in enumerate(specs)
    ]
    targets = recipe.arrange_training if setting.targets else None
    described = ", ".join(map(str, specs)) + (" with targets" if targets else "")
    return (targets or recipe.arrange)(tensors), described


def _cast(x: torch.Tensor, setting: Setting) -> torch.Tensor:
    return x.to(setting.device, setting.dtype if x.is_floating_point() else None)


def _guess(model: nn.Module) -> str:
    """An `--input` that the first layer would take."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return f"1x{module.in_features}"
        if isinstance(module, nn.Embedding):
            return "1x16:int64"
        if isinstance(module, nn.modules.conv._ConvNd) and not module.transposed:
            spatial = {1: "1000", 2: "224x224", 3: "16x112x112"}
            return f"1x{module.in_channels}x{spatial[len(module.kernel_size)]}"
    return "1x3x224x224"


def runs_only_for_real(error: BaseException) -> bool:
    """Whether a failure on the meta device is the device's: the model reads values, or an operator has no meta form."""
    cause = error.__cause__ or error
    text = f"{type(cause).__name__} {cause}".lower()
    return isinstance(cause, NotImplementedError) or "meta" in text or "data-dependent" in text or ".item()" in text
