"""Prepares a run: builds a recipe's model, fills, casts and moves it, and makes its input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from hookcli.engine import failure
from hookcli.engine.batches import DataBatches
from hookcli.engine.inputs import inputs_for
from hookcli.engine.preserve import set_mode
from hookcli.engine.run_info import describe_run, headless, torchvision_version, unquantized
from hookcli.engine.setting import META, Feedback, Setting, compile_settings
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, ModelError, UsageError, UserCode, class_name, in_brief, message_of
from hookcli.hooks.outside_runs import parameters_on_meta, refusing_countless_modules
from hookcli.hooks.torch_private.modules import BatchNorm
from hookcli.hooks.torch_private.programs import as_written
from hookcli.sources import losses
from hookcli.sources.base import Recipe
from hookcli.sources.state_dicts import fill, is_file, read_state
from hookcli.sources.transformers_on_meta import runs_on_meta
from hookcli.table.meta import WEIGHTS, Meta, with_notes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A model with all that its run needs, a description of that run for reports, and who hears how far it is."""

    name: str
    model: nn.Module
    inputs: Any
    step: Step
    info: Meta
    feedback: Feedback = Feedback()
    data: DataBatches | None = None
    """The real input that `inputs` are the first batch of."""

    @classmethod
    def of(cls, model: nn.Module, inputs: Any, step: Step = Step(), name: str | None = None) -> PreparedRun:
        return cls(name or type(model).__name__, model, inputs, step, describe_run(model, inputs))


def prepare_run(
    recipe: Recipe, setting: Setting = Setting(), step: Step = Step(), feedback: Feedback = Feedback()
) -> PreparedRun:
    """Build a model and input; a step with backward gets the recipe's loss if it has none. Raises ModelError."""
    feedback.stage(f"building {recipe.name} on {setting.device}")
    model, remark, weights = build(recipe, setting)
    if remark:
        feedback.remark(remark)
    with UserCode(lambda e: ModelError(f"preparing {recipe.name} or its input failed: {failure.describe(e)}")):
        _ = [*model.named_modules(), *model.parameters(), *model.buffers()]  # methods that a model may have of its own
        model = _as_set(model, setting)
        data = DataBatches(recipe, model, setting) if setting.data else None
        inputs, described = (data.first.inputs, data.first.described) if data else inputs_for(recipe, model, setting)
        if setting.parts > 1:  # or all parts of the batch had the same dropout
            torch.manual_seed(setting.seed + setting.part)
    info: Meta = {**describe_run(model, inputs), **_of_recipe(recipe, setting, data, described), **weights}
    info = with_notes(info, *unquantized(info), *filter(None, [headless(info)]))
    if data:
        step = replace(step, target=data.first.target)
    if step.backward and recipe.loss and not (step.loss or step.backward_vector):
        step = replace(step, loss=recipe.loss)
        taken = step.target is not None and losses.takes_target(recipe.loss)
        info["loss"] = recipe.loss_name.partition(",")[0] if taken else recipe.loss_name  # no class is made up
    if setting.parts > 1:
        _remark_on_parts(recipe, model, feedback)
    return PreparedRun(recipe.name, model, inputs, step, info, feedback, data)


def _as_set(model: nn.Module, setting: Setting) -> nn.Module:
    """The model without the wrappers of torch.compile, in its mode, dtype and place, and compiled if that is asked."""
    model, _ = as_written(model)
    if setting.train is not None:
        set_mode(model, setting.train)
    if setting.dtype is not None:
        model.to(dtype=setting.dtype)
    if setting.shard:
        setting.shard(model)
    if setting.device == META:
        scripted = [
            fqn
            for fqn, module in model.named_modules()
            if isinstance(module, torch.jit.ScriptModule) and any(not p.is_meta for p in module.parameters())
        ]
        if scripted:
            name = scripted[0] or "the model"
            raise NotImplementedError(f"{name} is TorchScript, which can't be moved to the meta device")
        if (library := sys.modules.get("transformers")) is not None:  # it may be one of its models
            runs_on_meta(library)
    try:
        model.to(setting.device)
    except Exception as error:
        if setting.device == META:
            raise NotImplementedError(f"it can't be moved to the meta device ({in_brief(error)})") from error
        raise
    if setting.compile:
        model.forward = torch.compile(model.forward, **compile_settings(setting.compile))
    return model


def _of_recipe(recipe: Recipe, setting: Setting, data: DataBatches | None, described: str) -> Meta:
    """The entries that come from the recipe, the setting and the input."""
    meta: Meta = {"seed": setting.seed, **recipe.meta, **torchvision_version(), "input": described}
    if not recipe.batched:
        meta["batch"] = described.count(",") + 1  # each input is one item of the batch
    meta |= {"data": data.typed, **data.how} if data else {"fill": setting.fill}
    if setting.backend:
        meta["backend"] = setting.backend
    if setting.parallel:
        meta["parallel"] = setting.parallel
    if setting.parts > 1:
        meta |= {"processes": setting.parts, "rank": setting.part}
    return meta


class Built(NamedTuple):
    """A model with its weights, a remark on those that did not fit, and their entry of `meta` if a file had them."""

    model: nn.Module
    remark: str | None
    weights: Meta


def build(recipe: Recipe, setting: Setting, *, original: bool = False) -> Built:
    """The model with its weights. Raises ModelError where its code fails.

    `original`: with the very parameters that its code made, and the module itself where it exists already, since hooks
    on parameters are lost in copies.
    """
    if setting.weights and recipe.frozen:
        raise UsageError(f"--weights {setting.weights}: {recipe.frozen}", option=WEIGHTS)
    torch.manual_seed(setting.seed)
    file = setting.weights if setting.weights and is_file(setting.weights) else None
    published = bool(setting.weights) and not file
    if published and recipe.build_filled is None:
        none = "this model has no published weights; give a file (.pt, .safetensors)"
        raise UsageError(f"--weights {setting.weights}: {none}", option=WEIGHTS)
    if published and setting.device != META:
        assert recipe.build_filled is not None
        return Built(*_call(partial(recipe.build_filled, setting.strict), recipe.name), {})
    # For shapes, published weights need not be on disk.
    model = recipe.ready if original and recipe.ready is not None else _built(recipe, setting.device, original)
    if not file:
        return Built(model, None, {})
    filled = fill(model, read_state(file), setting.strict, file)
    return Built(model, filled.remark, {WEIGHTS: f"{file}{filled.share}"})


def runs_only_for_real(error: BaseException) -> bool:
    """True if a failure on the meta device may be due to it: a value is read, or a kernel or dtype is missing."""
    cause: BaseException | None = error.__cause__ or error  # a ModelError's own text has names of modules and files
    while cause is not None:
        text = message_of(cause).lower()
        by_fake_tensors = class_name(cause).startswith(("Dynamic", "DataDependent"))
        words = ("meta", "data-dependent", ".item()", "float16", "bf16")
        if by_fake_tensors or isinstance(cause, NotImplementedError) or any(word in text for word in words):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _built(recipe: Recipe, device: torch.device, original: bool) -> nn.Module:
    if device != META:
        return _call(recipe.build, recipe.name)
    ways: list[Callable[[], Any]] = [partial(torch.device, "meta"), parameters_on_meta]
    for way in ways[:1] if original else ways:
        try:
            with way(), refusing_countless_modules():
                return recipe.build()
        except (HookcliError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a model that reads a value while it is built: try the next way
            if not runs_only_for_real(error):
                break
    return _call(recipe.build, recipe.name)


def _call(build: Callable[[], T], name: str) -> T:
    with (
        UserCode(lambda error: ModelError(f"building {name} failed: {failure.describe(error)}")),
        refusing_countless_modules(),
    ):
        return build()


def _remark_on_parts(recipe: Recipe, model: nn.Module, feedback: Feedback) -> None:
    """Remark on what differs from one process with the whole batch."""
    if not recipe.batched:
        feedback.remark("each process has its own list of inputs: rows are merged by position")
    alone = [m for m in model.modules() if isinstance(m, BatchNorm) and not isinstance(m, nn.SyncBatchNorm)]
    if any(m.training for m in alone):
        what = "batch normalization in train mode normalizes each process's part of the batch separately"
        feedback.remark(f"{what}: --eval, or SyncBatchNorm in the model, gives the statistics of the whole batch")
