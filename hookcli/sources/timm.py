"""timm's models, by name: `timm:resnet50d`, with a tag of weights `timm:resnet50d.ra2_in1k`, or a folder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from hookcli.errors import UsageError, in_brief, unknown
from hookcli.sources import losses
from hookcli.sources.base import InputSpec, Recipe, Request, Transforms
from hookcli.sources.libraries import config_folder, import_library, in_hub_cache
from hookcli.system.files import is_folder
from hookcli.table.meta import RANDOM, WEIGHTS, Meta

_FILES = ("model.safetensors", "pytorch_model.bin")
_REFUSED = ("pretrained", "checkpoint_path", "pretrained_cfg")


class TimmSource:
    """Every model that timm can create, with the input of its weights' configuration. Never downloads weights."""

    def recipe(self, request: Request) -> Recipe:
        timm = import_library("timm", f"timm:{request.spec}")
        for name in request.args.keys() & set(_REFUSED):
            raise UsageError(f"--arg {name}: give --weights TAG or FILE instead", option="arg")
        name, config = _named(timm, request)
        tag = config.get("tag") or config.get("hf_hub_id") or config.get("file") or "default"
        channels, *sides = config["input_size"]  # as the arguments change it
        side = request.args.get("img_size") or sides
        size = (request.args.get("in_chans") or channels, *((side, side) if isinstance(side, int) else side))
        build = partial(_build, timm, name, request.args)
        meta: Meta = {"timm": timm.__version__, WEIGHTS: str(tag) if request.weights else RANDOM}
        return Recipe(
            name=f"timm:{request.spec}",
            build=build,
            inputs=(InputSpec((1, *size)),),
            loss=losses.cross_entropy if config["num_classes"] else None,
            loss_name="cross-entropy, class 0" if config["num_classes"] else "sum",
            build_filled=(lambda _: (build(weights=_file(config, name)), None)) if request.weights else None,
            transforms=partial(_transforms, config, size),
            meta=meta,
        )


def _named(timm: ModuleType, request: Request) -> tuple[str, dict[str, Any]]:
    """timm's name of the model, with the weights' tag, and its configuration. Raises UsageError for unknown ones."""
    name = request.spec
    if is_folder(name) or "/" in name:
        folder = name if is_folder(name) else config_folder(name.removeprefix("hf-hub:"), f"timm:{name}")
        return f"local-dir:{folder}", _configured(f"local-dir:{folder}")
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        see = "see `hookcli models --source timm`"
        raise UsageError(unknown("timm model", architecture, timm.list_models(), see=see))
    if request.weights not in (None, "DEFAULT"):
        tag = str(request.weights)
    tags = [one.partition(".")[2] for one in timm.list_models(f"{architecture}.*", include_tags=True)]
    if tag and tag not in tags:
        option = {"option": WEIGHTS} if tag == request.weights else {}
        raise UsageError(unknown(f"weights of {architecture}", tag, [t for t in tags if t]), **option)
    name = f"{architecture}.{tag}" if tag else architecture
    return name, _configured(name)


def _configured(name: str) -> dict[str, Any]:
    """The configuration of a model with its weights. Raises UsageError for a folder or hub name without one."""
    from timm.models import resolve_model_input_args

    try:
        config: dict[str, Any] = resolve_model_input_args(name)["pretrained_cfg"]
    except Exception as error:  # a broken config.json, a hub that can't be reached
        place = f"timm:{name.removeprefix('local-dir:')}"
        raise UsageError(f"{place}: no configuration of a timm model there ({in_brief(error)})") from error
    return config


def _build(timm: ModuleType, name: str, args: Mapping[str, object], weights: Path | None = None) -> nn.Module:
    overlay = {"file": str(weights), "source": "", "custom_load": False} if weights else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # deprecated names are said to be so
        model: nn.Module = timm.create_model(name, pretrained=bool(weights), pretrained_cfg_overlay=overlay, **args)
    return model


def _file(config: Mapping[str, Any], name: str) -> Path:
    """The file of a model's weights, from its folder or a cache on disk. Raises UsageError if there is none."""
    file, hub, url = None, config.get("hf_hub_id"), config.get("url")
    if folder := config.get("file"):
        file = next((Path(folder, name) for name in _FILES if Path(folder, name).is_file()), None)
    elif hub:
        file = in_hub_cache(hub, *filter(None, (config.get("hf_hub_filename"), *_FILES)))
    if file is None and url:
        cached = Path(torch.hub.get_dir(), "checkpoints", str(url).rpartition("/")[2])
        file = cached if cached.suffix != ".npz" and cached.is_file() else None
    if file is None:
        place = folder or hub or url
        why = f"its weights are not on disk; hookcli does not download: get {place}" if place else "none are published"
        raise UsageError(f"--weights for timm:{name}: {why}", option=WEIGHTS)
    return file


def _transforms(config: Mapping[str, object], size: tuple[int, ...]) -> Transforms:
    """The transforms of the weights' evaluation, for this size of input."""
    from timm.data import create_transform, resolve_data_config

    settings = resolve_data_config({"input_size": size}, pretrained_cfg=dict(config))
    made: Transforms = create_transform(**settings, is_training=False)
    return made
