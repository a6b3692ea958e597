"""The arguments of a model: made for a recipe's model, or taken from a batch by the parameters of its forward."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookcli.engine.run_info import model_dtype
from hookcli.engine.setting import META, Setting
from hookcli.errors import UsageError, class_name, unknown
from hookcli.hooks.torch_private.modules import Convolution
from hookcli.sources.base import Arguments, InputSpec, Recipe
from hookcli.sources.data.base import AllInput
from hookcli.sources.inputs import input_specs, make_tensor
from hookcli.sources.losses import TARGET_NAMES
from hookcli.tensors import tree
from hookcli.tensors.containers import holds_tensors


def inputs_for(
    recipe: Recipe, model: nn.Module, setting: Setting, dtype: torch.dtype | None = None
) -> tuple[Arguments, str]:
    """The model's arguments, of `dtype`, the setting's or its own, and their shapes in words. Raises UsageError."""
    natural = 1 if recipe.fixed_batch else setting.natural_batch * setting.parts
    specs = input_specs(recipe, setting.inputs, setting.batch, natural)
    if specs is None:
        return _example(recipe, model, setting)
    dtype = dtype or setting.dtype or model_dtype(model)
    tensors = [
        make_tensor(spec, setting.fill, dtype, setting.device, setting.seed + number)
        for number, spec in enumerate(specs)
    ]
    tensors = [_part(x, setting) for x in tensors] if recipe.batched else _part_of_list(tensors, setting)
    targets = recipe.arrange_training if setting.targets else None
    described = ", ".join(_described(spec, setting) for spec in specs) + (" with targets" if targets else "")
    return (targets or recipe.arrange)(tensors), described


def _described(spec: InputSpec, setting: Setting) -> str:
    """The spec in words, with (0 or 1) after integers drawn without a known vocabulary: real ones take many values."""
    integers = spec.dtype not in (None, torch.bool) and not (spec.dtype.is_floating_point or spec.dtype.is_complex)
    drawn = setting.fill.startswith("rand") and setting.device != META
    return f"{spec} (0 or 1)" if integers and drawn and spec.high == 2 else str(spec)


class Call(NamedTuple):
    """The arguments of a call that has several, or some by position and some by keyword."""

    args: tuple[object, ...]
    kwargs: dict[str, object]


def as_called(
    function: str, model: nn.Module, positional: Sequence[Any], keywords: Any, settings: Collection[str]
) -> Any:
    """The model's inputs among the arguments of `function`: several belong to one call, one alone may hold them all.

    Raises TypeError for a keyword that is neither one of the function's `settings` nor one of the model's forward.
    """
    if not positional and [*keywords] == ["inputs"]:
        return keywords["inputs"]
    forward = Forward.of(model)
    for name in keywords:
        if not forward.takes(name):
            see = f"neither a setting nor an argument of {class_name(model)}.forward"
            raise TypeError(f"{function}: {unknown('argument', name, {*settings, *(forward.keywords or ())}, see=see)}")
    return positional[0] if len(positional) == 1 and not keywords else Call(tuple(positional), dict(keywords))


def arguments(inputs: Any) -> tuple[tuple[object, ...], dict[str, object]]:
    """The positional and keyword arguments with which a model is called on these inputs."""
    if isinstance(inputs, Call):
        return inputs
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def cast_to(inputs: object, device: torch.device, dtype: torch.dtype | None) -> Any:
    """The inputs on a device, with floating-point ones cast to `dtype` if it is given."""
    return tree.replace(inputs, tree.once(lambda path, x: x.to(device, dtype if x.is_floating_point() else None)))


def _example(recipe: Recipe, model: nn.Module, setting: Setting) -> tuple[Arguments, str]:
    example = recipe.example(model) if recipe.example else None
    if example is None and not setting.needs_input:
        return (), ""
    if example is None:
        guess = "1x3x224x224"
        for module in model.modules():
            if isinstance(module, nn.Linear):
                guess = f"1x{module.in_features}"
            elif isinstance(module, nn.Embedding):
                guess = "1x16:int64"
            elif isinstance(module, Convolution) and not module.transposed:
                spatial = {1: "1000", 2: "224x224", 3: "16x112x112"}
                guess = f"1x{module.in_channels}x{spatial[len(module.kernel_size)]}"
            else:
                continue
            break  # the first layer tells
        raise UsageError(f"{recipe.name}: input shape needed, for example --input {guess}")
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

    def divided(value: object) -> Any:
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


@dataclass(frozen=True, slots=True)
class Forward:
    """The parameters of a model's forward: the `names` of those that may be given by position, of which `needed` have
    no default; `more` of them with `*args`; and the `keywords` that it takes, None for any.
    """

    names: Sequence[str]
    needed: int
    more: bool
    keywords: frozenset[str] | None

    @classmethod
    def of(cls, model: nn.Module) -> Forward:
        """The parameters of this model's forward; any, where Python can't tell (TorchScript)."""
        try:
            parameters = list(inspect.signature(model.forward).parameters.values())
        except (TypeError, ValueError):
            return cls((), 0, True, None)
        placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        return cls(
            [p.name for p in placed],
            sum(p.default is p.empty for p in placed),
            any(p.kind is p.VAR_POSITIONAL for p in parameters),
            None if any(p.kind is p.VAR_KEYWORD for p in parameters) else named,
        )

    def takes(self, keyword: str) -> bool:
        return self.keywords is None or keyword in self.keywords

    @property
    def takes_one(self) -> bool:
        """True if one input by position is enough."""
        return bool(self.names) and self.needed <= 1

    def split(self, batch: object) -> tuple[Arguments, object]:
        """The arguments in a batch and its target, None without one. Raises UsageError for what the model can't take.

        Keywords are matched by name; one more that is called target or label is the target. The last item of a tuple or
        list is the target where forward needs fewer arguments than there are items.
        """
        if isinstance(batch, AllInput):
            keywords = batch.arguments
            known = keywords if isinstance(keywords, tuple) else self._named(keywords, (), batch.spare, batch.typed)[0]
            return known, batch.target
        if isinstance(batch, Mapping):
            return self._named(batch)
        if not isinstance(batch, (tuple, list)):
            if isinstance(batch, Tensor) or hasattr(batch, "__array__") or holds_tensors(batch):
                return (batch,), None
            raise UsageError(f"is {class_name(batch)}; give a tensor, a tuple of inputs and a target, or a dict")
        if not batch:
            raise UsageError("is empty")
        items = tuple(batch)
        together = len(items) == 2 and self._holds_all(items[0])
        if len(items) == 1 or (len(items) <= self.needed and not together) or (self.more and not self.names):
            return self._alone(items), None
        *inputs, target = items
        return self._with_target(self._alone(tuple(inputs)), target)

    def _with_target(self, arguments: Arguments, target: object) -> tuple[Arguments, object]:
        """The arguments and the target, which is one of them where forward has a parameter for it."""
        name = next((name for name in self.names if name in TARGET_NAMES), None)
        if name is None:
            return arguments, target
        if isinstance(arguments, dict):
            return {**arguments, name: target}, None
        if self.names[len(arguments) : len(arguments) + 1] == [name]:
            return (*arguments, target), None
        return {**dict(zip(self.names, arguments, strict=False)), name: target}, None

    def _alone(self, items: tuple[Any, ...]) -> Arguments:
        """The arguments among the items of a batch: one item may hold several of them, or keywords."""
        if len(items) == 1 and isinstance(items[0], Mapping):
            return self._named(items[0])[0]
        if len(items) == 1 and self._holds_all(items[0]):
            return tuple(items[0])
        names = ", ".join(self.names) or "no input"
        if len(items) < self.needed:
            raise UsageError(f"has {len(items)} input{'s' * (len(items) > 1)}, but forward takes {names}")
        if len(items) > len(self.names) and not self.more:
            raise UsageError(f"has {len(items)} inputs and a target, but forward takes {names}")
        return items

    def _holds_all(self, item: Any) -> bool:
        """True if one item of a batch holds all the arguments that forward needs, where it needs several."""
        return isinstance(item, (tuple, list)) and len(item) == self.needed > 1

    def _named(
        self,
        named: Mapping[str, object],
        targets: Sequence[str] = TARGET_NAMES,
        spare: bool = False,
        typed: bool = False,
    ) -> tuple[Arguments, object]:
        """The keywords that forward takes, and the one of these targets that is left."""
        taken, rest = {}, {}
        for key, value in named.items():
            if self.takes(key):
                taken[key] = value
            else:
                rest[key] = value
        target = next((rest.pop(key) for key in targets if key in rest), None)
        if rest and (spare or len(rest) == 1) and self.takes_one and not (taken or typed):
            return (next(iter(rest.values())),), target  # whatever it is called
        if rest and not spare:
            raise UsageError(unknown("keyword of forward", next(iter(rest)), self.names or sorted(self.keywords or ())))
        for name in self.names[: self.needed]:
            if name not in taken:
                raise UsageError(f"lacks {name!r}, which forward needs; it has {', '.join(map(str, named))}")
        return taken, target
