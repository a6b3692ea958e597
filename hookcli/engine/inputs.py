"""Makes the input of a recipe's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hookcli.engine.run_info import model_dtype
from hookcli.engine.setting import Setting
from hookcli.errors import UsageError
from hookcli.hooks.torch_private.modules import Convolution
from hookcli.sources.base import Arguments, Recipe
from hookcli.sources.inputs import input_specs, make_tensor
from hookcli.tensors import tree


def inputs_for(
    recipe: Recipe, model: nn.Module, setting: Setting, dtype: torch.dtype | None = None
) -> tuple[Arguments, str]:
    """The model's arguments and their shapes in words; nothing if they are unknown and the setting needs none.

    Generated tensors have `dtype`, else the setting's, else the model's own. Raises UsageError for an unknown input.
    """
    specs = input_specs(recipe, setting.inputs, setting.batch, setting.natural_batch * setting.parts)
    if specs is None:
        return _example(recipe, model, setting)
    dtype = dtype or setting.dtype or model_dtype(model)
    tensors = [
        make_tensor(spec, setting.fill, dtype, setting.device, setting.seed + number)
        for number, spec in enumerate(specs)
    ]
    tensors = [_part(x, setting) for x in tensors] if recipe.batched else _part_of_list(tensors, setting)
    targets = recipe.arrange_training if setting.targets else None
    described = ", ".join(map(str, specs)) + (" with targets" if targets else "")
    return (targets or recipe.arrange)(tensors), described


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments with which a model is called on these inputs."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def cast_to(inputs: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """The inputs on a device, with floating-point ones cast to `dtype` if it is given."""
    return tree.replace(inputs, tree.once(lambda path, x: x.to(device, dtype if x.is_floating_point() else None)))


def _example(recipe: Recipe, model: nn.Module, setting: Setting) -> tuple[Arguments, str]:
    example = recipe.example(model) if recipe.example else None
    if example is None and not setting.needs_input:
        return (), ""
    if example is None:
        raise UsageError(f"{recipe.name}: input shape needed, for example --input {_guess(model)}")
    shapes = [tree.shape_text(x) for _, x in tree.leaves(example)]
    if setting.batch:
        comes = f"{recipe.name} comes with an example input; give --input instead"
        raise UsageError(f"--batch-size: {comes}", option="batch-size")
    example = cast_to(example, setting.device, setting.dtype)
    return tree.replace(example, tree.once(lambda path, x: _part(x, setting))), f"{', '.join(shapes)} (its example)"


def part_of(arguments: Arguments, setting: Setting) -> Arguments:
    """This process's part of a batch: of each tensor along dimension 0, and of each list of items."""
    if setting.parts == 1:
        return arguments

    def divided(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _part(value, setting) if value.dim() else value
        if isinstance(value, (tuple, list)):
            return _part_of_list(value, setting)
        return {key: divided(item) for key, item in value.items()} if isinstance(value, dict) else value

    return tuple(map(divided, arguments)) if isinstance(arguments, tuple) else divided(arguments)


def _part(x: torch.Tensor, setting: Setting) -> torch.Tensor:
    if setting.parts == 1:
        return x
    size = _part_size(x.shape[0] if x.dim() else 0, setting)
    return x.narrow(0, setting.part * size, size).clone()


def _part_of_list(items: Any, setting: Setting) -> Any:
    size = _part_size(len(items), setting)
    return items[setting.part * size :][:size]


def _part_size(batch: int, setting: Setting) -> int:
    """The size of a process's part. Raises UsageError if the batch can't be divided equally."""
    if batch < setting.parts or batch % setting.parts:
        fits = max(1, -(-batch // setting.parts)) * setting.parts
        way = "drop_last=True of a DataLoader drops it" if setting.data else f"--batch-size {fits} does, for example"
        raise UsageError(f"a batch of {batch} does not divide by {setting.parts} processes; {way}")
    return batch // setting.parts


def _guess(model: nn.Module) -> str:
    """An `--input` that fits the model's first layer."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return f"1x{module.in_features}"
        if isinstance(module, nn.Embedding):
            return "1x16:int64"
        if isinstance(module, Convolution) and not module.transposed:
            spatial = {1: "1000", 2: "224x224", 3: "16x112x112"}
            return f"1x{module.in_channels}x{spatial[len(module.kernel_size)]}"
    return "1x3x224x224"
