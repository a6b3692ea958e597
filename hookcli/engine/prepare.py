"""From a recipe to a model on a device, filled and cast, with its input. Shapes alone need no device at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from hookcli.engine import failure
from hookcli.engine.preserve import set_mode
from hookcli.engine.run_info import model_dtype
from hookcli.errors import HookcliError, ModelError, UsageError, UserCode, message_of
from hookcli.hooks.registration import parameters_on_meta
from hookcli.sources.base import InputSpec, Recipe
from hookcli.sources.inputs import input_specs, make_tensor
from hookcli.sources.weights import fill, is_file, read_state
from hookcli.tensors import tree

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
    dtype: torch.dtype | None = None
    """What the model and its input are cast to; None: they stay as they are."""
    needs_input: bool = True
    """Whether it is an error that nobody knows what the model takes."""
    part: int = 0
    parts: int = 1
    """Which of equal parts of the batch this process gets."""
    shard: Callable[[nn.Module], object] | None = None
    """What spreads the model's parameters over processes, in place, and brings them to the device."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model and the arguments to call it with, positional or by keyword."""

    model: nn.Module
    inputs: tuple[Any, ...] | dict[str, Any]
    described: str
    """The input in words: 2x3x224x224, or with targets for a detector in training."""
    remark: str | None = None


def parse_device(name: str) -> torch.device:
    """A device that is there. Raises UsageError for any other, naming those that are."""
    try:
        device = torch.device(name)
        if device.type != "meta":
            torch.empty(1, device=device)
    except Exception as error:  # each backend fails in its own way
        raise UsageError(f"--device {name}: not there; there is {', '.join(_devices())}") from error
    return device


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    count = torch.accelerator.device_count() if accelerator else 0
    return ["cpu", "meta", *(f"{accelerator}:{i}" for i in range(count))]


def prepare(recipe: Recipe, setting: Setting) -> Prepared:
    """Build the model, fill and cast it, and make its input. Raises ModelError where its own code fails."""
    model, remark = build(recipe, setting)
    with UserCode(lambda e: ModelError(f"preparing {recipe.name} or its input failed: {failure.describe(e)}")):
        _ = [*model.named_modules(), *model.parameters(), *model.buffers()]  # methods that a model may have of its own
        set_mode(model, setting.train)
        if setting.dtype is not None:
            model.to(dtype=setting.dtype)
        if setting.shard:
            setting.shard(model)
        if setting.device == META:
            _check_movable(model)
        model.to(setting.device)
        inputs, described = inputs_for(recipe, model, setting)
        if setting.parts > 1:  # or all parts of the batch had the same dropout
            torch.manual_seed(setting.seed + setting.part)
    return Prepared(model, inputs, described, remark)


def _check_movable(model: nn.Module) -> None:
    """Raises NotImplementedError where parts of the model have parameters that can't go to the meta device."""
    for fqn, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(not p.is_meta for p in module.parameters()):
            raise NotImplementedError(f"{fqn or 'the model'} is TorchScript, which can't be moved to the meta device")


def build(recipe: Recipe, setting: Setting, *, original: bool = False) -> tuple[nn.Module, str | None]:
    """The model with its weights, and a remark on what of them did not fit. Raises ModelError where its code fails.

    `original`: with the very parameters that its code made, and the module itself where it exists already: whoever
    looks at what hangs on them must not get copies.
    """
    torch.manual_seed(setting.seed)
    published = bool(setting.weights) and not is_file(str(setting.weights))
    if published and recipe.build_filled is None:
        known = "only torchvision models have published weights; give a file (.pt, .safetensors)"
        raise UsageError(f"--weights {setting.weights}: {known}")
    if published and setting.device != META:
        assert recipe.build_filled is not None
        model, remark = _call(recipe.build_filled, recipe.name), None
    else:  # for shapes published weights need not be on disk
        model = recipe.ready if original and recipe.ready is not None else _built(recipe, setting.device, original)
        file = None if published else setting.weights
        remark = fill(model, read_state(file), setting.strict, file) if file else None
    return model, remark


def _built(recipe: Recipe, device: torch.device, original: bool) -> nn.Module:
    if device != META:
        return _call(recipe.build, recipe.name)
    ways: list[Callable[[], Any]] = [partial(torch.device, "meta"), parameters_on_meta]
    for way in ways[:1] if original else ways:
        try:
            with way():
                return recipe.build()
        except (HookcliError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a model that reads a value while it is built: try the next way
            if not runs_only_for_real(error):
                break
    return _call(recipe.build, recipe.name)


def _call(build: Callable[[], nn.Module], name: str) -> nn.Module:
    with UserCode(lambda error: ModelError(f"building {name} failed: {failure.describe(error)}")):
        return build()


def inputs_for(
    recipe: Recipe, model: nn.Module, setting: Setting, dtype: torch.dtype | None = None
) -> tuple[tuple[Any, ...] | dict[str, Any], str]:
    """What the model is called with, and that in words; nothing where nobody knows and the setting does not need it.

    Generated tensors have `dtype`, else the setting's, else the model's own.
    """
    specs = input_specs(recipe, setting.inputs, setting.batch, setting.natural_batch * setting.parts)
    if specs is None:
        example = recipe.example(model) if recipe.example else None
        if example is None and not setting.needs_input:
            return (), ""
        if example is None:
            raise UsageError(f"{recipe.name}: say what it takes, for example --input {_guess(model)}")
        shapes = [tree.shape_text(x) for _, x in tree.leaves(example)]
        if setting.batch:
            raise UsageError(f"--batch-size: {recipe.name} brings its own example input; give --input instead")
        example = cast_to(example, setting.device, setting.dtype)
        return tree.replace(example, tree.once(lambda path, x: _part(x, setting))), f"{', '.join(shapes)} (its example)"
    dtype = dtype or setting.dtype or model_dtype(model)
    tensors = [
        make_tensor(spec, setting.fill, dtype, setting.device, setting.seed + number)
        for number, spec in enumerate(specs)
    ]
    if recipe.batched:
        tensors = [_part(tensor, setting) for tensor in tensors]
    else:
        size = _share(len(tensors), setting)
        tensors = tensors[setting.part * size :][:size]
    targets = recipe.arrange_training if setting.targets else None
    described = ", ".join(map(str, specs)) + (" with targets" if targets else "")
    return (targets or recipe.arrange)(tensors), described


def _part(x: torch.Tensor, setting: Setting) -> torch.Tensor:
    """This process's part of a tensor along dimension 0."""
    if setting.parts == 1:
        return x
    size = _share(x.shape[0] if x.dim() else 0, setting)
    return x.narrow(0, setting.part * size, size).clone()


def _share(batch: int, setting: Setting) -> int:
    """The size of a part. Raises UsageError where the batch does not divide."""
    if batch < setting.parts or batch % setting.parts:
        fits = max(1, -(-batch // setting.parts)) * setting.parts
        raise UsageError(
            f"a batch of {batch} does not divide by {setting.parts} processes; --batch-size {fits} does, for example"
        )
    return batch // setting.parts


def cast_to(inputs: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """The inputs on a device; those of a floating-point dtype cast, where one is given."""
    return tree.replace(inputs, tree.once(lambda path, x: x.to(device, dtype if x.is_floating_point() else None)))


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
    cause: BaseException | None = error
    while cause is not None:
        text = message_of(cause).lower()
        if isinstance(cause, NotImplementedError) or any(
            word in text for word in ("meta", "data-dependent", ".item()")
        ):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
