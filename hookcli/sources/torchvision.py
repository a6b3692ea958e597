"""torchvision's models, by name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from hookcli.errors import UsageError, unknown
from hookcli.hooks.torch_private.dynamo import not_imported_by_libraries
from hookcli.sources import losses
from hookcli.sources.base import InputSpec, Recipe, Request, Transforms, one_list
from hookcli.sources.catalog import entries, installed_version
from hookcli.sources.catalog.base import ModelEntry
from hookcli.sources.misnamed import meant_by, unknown_name
from hookcli.system.files import near_files, regular
from hookcli.table.meta import RANDOM, WEIGHTS, Meta


class TorchvisionSource:
    """Every model of `torchvision.models.list_models()`, with natural inputs. Never downloads anything."""

    def recipe(self, request: Request) -> Recipe:
        catalog = entries()
        if not catalog:
            raise UsageError(
                f"{request.spec!r} is a torchvision model, but torchvision is not installed: pip install torchvision"
            )
        if request.spec not in catalog:
            spec = request.spec
            if meant := meant_by(spec) or unknown_name(spec):
                raise UsageError(meant)
            others = [f"{source}:{spec}" for source in ("timm", "hf") if spec.partition(".")[0] in entries(source)]
            hint = f" (of other libraries: {', '.join(others)})" if others else ""
            if spec.endswith(".py"):
                hint = near_files(Path(spec)) or f" (no such file; a model in one: {spec}:NAME)"
            raise UsageError(unknown("model", spec, catalog, see="see `hookcli models`") + hint)
        models = import_models()
        weights = _published(models, request) if request.weights else None
        build = partial(_build, models, request.spec, _arguments(models, request, weights), weights)
        recipe = _recipe(catalog[request.spec], partial(build, _unloaded), weights)
        recipe = replace(recipe, transforms=_transforms(models, catalog[request.spec], weights))
        return replace(recipe, build_filled=lambda _: (build(_from_disk), None)) if weights else recipe


def import_models() -> ModuleType:
    """The module torchvision.models. Raises UsageError, with both versions, if it does not match torch."""
    try:
        with not_imported_by_libraries():
            return import_module("torchvision.models")
    except (ImportError, RuntimeError, AttributeError) as error:
        raise UsageError(
            f"torch {torch.__version__} and torchvision {installed_version()} do not match ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}). Install matching versions: pip install -U torch torchvision"
        ) from error


def _published(models: ModuleType, request: Request) -> object:
    """The named member of the model's weights enums, with or without the enum's name, or `DEFAULT`.

    A quantizable model has two enums, for its float form and for its quantized one.
    """
    enums = [models.get_model_weights(request.spec)]
    if request.spec.startswith("quantized_"):
        enums.insert(0, models.get_model_weights(request.spec.removeprefix("quantized_")))
    for enum in enums:
        name = str(request.weights).removeprefix(f"{enum.__name__}.")
        if name in enum.__members__:
            return enum[name]
    names = [name for enum in enums for name in enum.__members__]
    raise UsageError(unknown(f"weights of {request.spec}", str(request.weights), names), option=WEIGHTS)


def _arguments(models: ModuleType, request: Request, weights: object) -> dict[str, object]:
    """The builder's keyword arguments. Raises UsageError for an unknown one."""
    accepted = inspect.signature(models.get_model_builder(request.spec)).parameters
    keywords = dict(request.args)
    for name in keywords.keys() - accepted.keys():
        if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            raise UsageError(unknown(f"argument of {request.spec}", name, accepted))
    if "weights_backbone" in accepted and not weights:
        keywords.setdefault("weights_backbone", None)  # its default would be downloaded
    if weights and "Quantized" in type(weights).__name__:
        keywords.setdefault("quantize", True)
    return keywords


def _build(models: ModuleType, name: str, keywords: Mapping[str, object], weights: Any, loading: Any) -> nn.Module:
    """The model as its builder makes it for these weights; `loading` stands in for its download."""
    with loading(weights) if weights else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # googlenet and inception warn that they initialize slowly
        built: nn.Module = models.get_model_builder(name)(weights=weights, **keywords)
    return built


@contextmanager
def _unloaded(weights: object) -> Iterator[None]:
    """Loads nothing: the model keeps its initial values."""
    with (
        patch.object(type(weights), "get_state_dict", lambda self, *args, **kwargs: {}),
        patch.object(nn.Module, "load_state_dict", lambda self, *args, **kwargs: None),
    ):
        yield


@contextmanager
def _from_disk(weights: Any) -> Iterator[None]:
    """The weights from torch.hub's folder. The builder loads them, since several rename keys or drop heads."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    if not file.is_file():
        where = f"not on disk ({file}); hookcli does not download: get {weights.url}"
        raise UsageError(f"weights {weights} are {where}", option=WEIGHTS)
    try:
        state = torch.load(regular(file), map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file makes the unpickler fail in many ways
        raise UsageError(f"weights {weights}: {file} was not written by torch.save", option=WEIGHTS) from error
    with patch.object(type(weights), "get_state_dict", lambda self, *args, **kwargs: state):
        yield


def _recipe(entry: ModelEntry, build: Callable[[], nn.Module], weights: object) -> Recipe:
    meta: Meta = {"kind": entry.kind, WEIGHTS: str(weights) if weights else RANDOM}
    recipe = Recipe(
        name=entry.name,
        build=build,
        inputs=tuple(InputSpec(shape) for shape in _input_shapes(entry, weights)),
        loss=losses.cross_entropy,
        loss_name="cross-entropy, class 0",
        meta=meta,
    )
    if entry.kind == "segmentation":
        loss = partial(losses.cross_entropy, auxiliary=0.5)
        return replace(recipe, loss=loss, loss_name="cross-entropy per pixel, class 0")
    if entry.kind == "optical_flow":
        return replace(recipe, loss=losses.flow_sequence, loss_name="L1 to zero flow")
    if entry.kind == "detection":
        with_targets = lambda images: (list(images), [_target(image, entry.name) for image in images])  # noqa: E731
        recipe = replace(recipe, arrange=one_list, arrange_training=with_targets, batched=False)
        return replace(recipe, loss=losses.own_losses, loss_name="the model's own losses")
    return recipe


def _input_shapes(entry: ModelEntry, weights: Any) -> tuple[tuple[int, ...], ...]:
    """The natural input, or one of the size that the named weights' transforms produce."""
    keywords = getattr(weights.transforms, "keywords", {}) if weights else {}
    size = keywords.get("crop_size")
    if size is None or entry.kind in ("detection", "optical_flow"):
        return entry.inputs
    side = (size, size) if isinstance(size, int) else tuple(size)
    return tuple((*shape[:-2], *(side if len(side) == 2 else side * 2)) for shape in entry.inputs)


def _transforms(models: ModuleType, entry: ModelEntry, weights: Any) -> Callable[[], Transforms] | None:
    """The transforms of these weights, else of those published for the natural input's size, the default ones first.

    None where the input is not a single picture, or no weights are published.
    """
    if entry.kind in ("optical_flow", "video"):
        return None
    enum = models.get_model_weights(entry.name)
    published = [weights] if weights else sorted(enum, key=lambda one: one is not enum.DEFAULT)
    wanted = _input_shapes(entry, weights)
    return next((one.transforms for one in published if _input_shapes(entry, one) == wanted), None)


def _target(image: Tensor, name: str) -> dict[str, Tensor]:
    """One object of class 1 in the middle of the image, with the mask and keypoints that some heads need."""
    if image.dim() != 3:
        raise UsageError(
            f"--input {'x'.join(map(str, image.shape))}: a detector takes images of 3 sizes, as in 3x320x320"
        )
    height, width = image.shape[-2:]
    box = [width / 4, height / 4, 3 * width / 4, 3 * height / 4]
    target = {
        "boxes": torch.tensor([box], device=image.device),
        "labels": torch.ones(1, dtype=torch.int64, device=image.device),
    }
    if name.startswith("maskrcnn"):
        target["masks"] = torch.zeros(1, height, width, dtype=torch.uint8, device=image.device)
        target["masks"][:, height // 4 : 3 * height // 4, width // 4 : 3 * width // 4] = 1
    if name.startswith("keypointrcnn"):
        target["keypoints"] = torch.tensor([width / 2, height / 2, 1.0], device=image.device).expand(1, 17, 3)
    return target
