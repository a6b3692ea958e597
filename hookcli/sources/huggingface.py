"""Transformers' models: `hf:FOLDER` with a config.json, `hf:NAME` on the hub, or the default of a type, `hf:bert`.

Models are built from their configuration alone, by Transformers' own classes; no code from a folder or the hub is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from hookcli.errors import ModelError, UsageError, UserCode, in_brief, shortened, unknown
from hookcli.hooks.outside_runs import MOST_MODULES
from hookcli.sources.base import Recipe, Request, Transforms
from hookcli.sources.catalog import entries
from hookcli.sources.catalog.transformers import BASE, headed_task
from hookcli.sources.huggingface_inputs import Inputs
from hookcli.sources.libraries import CONFIG, config_folder, import_library, load_tokenizer, without_remote_code
from hookcli.sources.transformers_on_meta import runs_on_meta
from hookcli.system.files import is_folder, near_files, regular
from hookcli.system.memory import available_memory
from hookcli.table.formatting import listed, size
from hookcli.table.meta import RANDOM, WEIGHTS, Meta

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
_LAYERS = "num_hidden_layers"
_ADAPTER = "adapter_config.json"
_PROCESSOR = ("preprocessor_config.json", "processor_config.json")


class HuggingFaceSource:
    """Every model type of the installed Transformers, with inputs that suit its configuration."""

    has_tasks = True

    def recipe(self, request: Request) -> Recipe:
        spec = f"hf:{request.spec}"
        library = import_library("transformers", spec, "huggingface")
        if "TRANSFORMERS_VERBOSITY" not in os.environ:
            library.utils.logging.set_verbosity_error()  # its remarks are for those who train
        place = _ConfigPlace.of(request.spec)
        config = _configured(library, place, request.args, spec)
        model_class = _class(library, config, request.task, spec)
        runs_on_meta(library)
        inputs = Inputs.of(model_class, config)
        meta: Meta = {
            "transformers": library.__version__,
            "architecture": model_class.__name__,
            "config": str(place.folder or f"defaults of the type {place.name}"),
            WEIGHTS: str(place.folder) if request.weights else RANDOM,
        }
        if request.weights:
            _check_weights(place, request.weights, spec)
        elif asked := getattr(config, "quantization_config", None):
            method = asked.get("quant_method") if isinstance(asked, dict) else getattr(asked, "quant_method", None)
            meta["unquantized"] = str(getattr(method, "value", method) or "unnamed")
        if request.task is None and not config.architectures:
            meta |= lacking_head(model_class, _tasks(config))
        return Recipe(
            name=spec,
            build=partial(_build, model_class, config, spec),
            inputs=inputs.specs,
            arrange=inputs.arrange,
            arrange_training=inputs.arrange_training if inputs.targets else None,
            build_filled=partial(_filled, library, model_class, config, place) if request.weights else None,
            transforms=partial(_transforms, library, str(place.folder)) if place.has(*_PROCESSOR) else None,
            tokenizer=partial(load_tokenizer, library, str(place.folder)) if place.has(*_TOKENIZER) else None,
            meta=meta,
        )


@dataclass(frozen=True, slots=True)
class _ConfigPlace:
    """The place of a configuration: a folder, here or in the hub's cache, or a type whose defaults are taken."""

    name: str
    folder: Path | None

    @classmethod
    def of(cls, name: str) -> _ConfigPlace:
        """The folder of that name, else the type, else the hub's name. Raises UsageError if it is nothing of these."""
        if is_folder(name) and (Path(name, CONFIG).is_file() or name not in entries("hf")):
            return cls(name, Path(name))
        if name in entries("hf"):
            return cls(name, None)
        if spec := spec_of_class(name):
            raise UsageError(f"hf:{name} names a class; did you mean {spec}?")
        try:
            return cls(name, config_folder(name, f"hf:{name}"))
        except UsageError as error:
            near = near_files(Path(name), suffix="", holds=CONFIG, prefix="hf:")
            if not near and (kind := type_in(name)):
                advice = f"hf:{kind} has this type's default architecture with random weights, hf:FOLDER a local model"
                raise UsageError(f"{error}\n  {advice}") from error.__cause__
            if near or "/" in name:
                raise (UsageError(f"hf:{name}: no such folder{near}") if near else error) from error.__cause__
            reason = str(error).removeprefix(f"hf:{name}: ")
            raise UsageError(f"hf:{name}: {unknown('type', name, entries('hf'), see=_SEE)}\n  {reason}") from error

    def has(self, *files: str) -> bool:
        return self.folder is not None and any((self.folder / file).is_file() for file in files)


def type_in(name: str) -> str:
    """The type that a name on the hub begins with, as bert in google-bert/bert-base-uncased; "" if there is none."""
    model = name.rpartition("/")[2].partition("@")[0].lower().replace("-", "_")
    begins = (kind for kind in entries("hf") if re.match(rf"{re.escape(kind.replace('-', '_'))}(?![a-z])", model))
    return max(begins, key=len, default="")


def spec_of_class(name: str) -> str:
    """The spec of a class of Transformers: `hf:gpt2 --task causal-lm` of GPT2LMHeadModel; "" for another name.

    Of several types with the class it is the one by whose name the class is called, and of several tasks the plainest.
    """
    owners = {kind: one.tasks for kind, one in entries("hf").items() if one.tasks and name in one.tasks.values()}
    if not owners:
        return ""
    called = [kind for kind in owners if name.lower().startswith(re.sub("[-_]", "", kind))]
    kind = max(called, key=len, default=next(iter(owners)))
    tasks = [task for task, class_name in owners[kind].items() if class_name == name]
    task = min(tasks, key=lambda task: (task != BASE, task == "pretraining"))
    return f"hf:{kind}" if task == next(iter(owners[kind])) else f"hf:{kind} --task {task}"


_COUNTED = re.compile(r"(layers?|blocks?|depths?|stages?|experts|heads|labels)$")
_SEE = "see `hookcli models --source hf`"


def _configured(library: ModuleType, place: _ConfigPlace, args: Mapping[str, object], spec: str) -> Any:
    """The configuration with the arguments in it. Raises UsageError for one that Transformers can't read."""
    if place.folder and not place.has(CONFIG):
        raise UsageError(f"{spec}: no {CONFIG} in that folder")
    with UserCode(lambda error: UsageError(f"{spec}: {CONFIG} can't be read ({in_brief(error)})")):
        if place.folder:
            regular(place.folder / CONFIG)
        settings = library.PreTrainedConfig.get_config_dict(str(place.folder))[0] if place.folder else {}
    if not isinstance(settings, dict):
        raise UsageError(f"{spec}: {CONFIG} is not a JSON object")
    _refuse_countless(settings, spec)
    _refuse_countless(args, spec)
    kind = str(settings.get("model_type")) if place.folder else place.name
    if kind not in library.CONFIG_MAPPING:
        hint = "; its code (auto_map) is not run" if "auto_map" in settings else ""
        problem = unknown(f"type of Transformers {library.__version__}", kind, entries("hf"))
        raise UsageError(f"{shortened(spec)}: {problem}{hint}")
    config_class = library.CONFIG_MAPPING[kind]
    unfit = UserCode(lambda error: UsageError(f"{spec}: the configuration does not fit ({in_brief(error)})"))
    with unfit, without_remote_code():
        plain = config_class.from_dict(settings)
        for name in args:
            if name not in {*plain.to_dict(), *config_class.attribute_map, "attn_implementation"}:
                see = f"its configuration is {config_class.__name__}"
                raise UsageError(unknown(f"argument of {spec}", name, plain.to_dict(), see=see), option="arg")
        merged = {name: _merged(settings.get(name), value) for name, value in args.items()}
        return config_class.from_dict(settings | merged)


def _refuse_countless(settings: Mapping[str, object], spec: str) -> None:
    """Raise UsageError for a number of parts that no model has: some configurations make lists of that length."""
    for name, value in settings.items():
        if isinstance(value, dict):
            _refuse_countless(value, spec)
        elif type(value) is int and value > MOST_MODULES and _COUNTED.search(str(name)):
            raise UsageError(f"{spec}: {name} = {value:,}: give a number up to {MOST_MODULES:,}")


def _merged(settings: object, override: object) -> object:
    """A given part of a configuration; entries of the configuration stay where the given part names others."""
    return settings | override if isinstance(settings, dict) and isinstance(override, dict) else override


def _tasks(config: Any) -> dict[str, str]:
    """The names of the classes of a configuration's type, by task; none for a type that the sources do not list."""
    kind = entries("hf").get(config.model_type)
    return (kind.tasks or {}) if kind else {}


def lacking_head(model_class: type[nn.Module], tasks: Mapping[str, str]) -> Meta:
    """The entry on the task whose class has the head that a type's base class lacks; none for other classes."""
    headed = headed_task(tasks) if model_class.__name__ == tasks.get(BASE) else ""
    return {"headless": headed} if headed else {}


def _class(library: ModuleType, config: Any, task: str | None, spec: str) -> type[nn.Module]:
    """The model's class: the one for the task, else the one that the configuration names, else the type's first."""
    tasks = _tasks(config)
    if task is not None and task not in tasks:
        raise UsageError(unknown(f"task of {config.model_type}", task, tuple(tasks)), option="task")
    architectures = list(config.architectures or ())
    names = [tasks[task]] if task else [*architectures[:1], *tasks.values()]
    if not names:
        raise UsageError(f"{spec}: Transformers {library.__version__} has no model for the type {config.model_type}")
    unusable = UserCode(lambda error: UsageError(f"{spec}: {names[0]} can't be imported ({in_brief(error)})"))
    with unusable, without_remote_code():
        model_class = getattr(library, str(names[0]))
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise UsageError(f"{spec}: {names[0]} is not a model of Transformers")
    return model_class


@without_remote_code()
def _build(model_class: type[nn.Module], config: Any, spec: str) -> nn.Module:
    """The model with random weights, in its configuration's dtype."""
    if torch.get_default_device().type != "meta":
        with torch.device("meta"):
            empty = model_class(config)
        needed = sum(t.numel() * t.element_size() for t in (*empty.parameters(), *empty.buffers()))
        room = available_memory()
        if room is not None and needed > room:
            sizes = f"its parameters take {size(needed)}, and {size(room)} are available"
            layers = getattr(config, _LAYERS, None)
            advice = f"; try fewer layers: --arg {_LAYERS}=2" if isinstance(layers, int) and layers > 2 else ""
            raise ModelError(f"{spec} is too large to run for real: {sizes}{advice}")
    model: nn.Module = model_class(config)
    return model if config.dtype is None else model.to(dtype=config.dtype)


def _check_weights(place: _ConfigPlace, weights: str, spec: str) -> None:
    if weights != "DEFAULT":
        advice = "give a file, a folder, or DEFAULT for the weights beside the configuration"
        raise UsageError(f"--weights {weights}: {advice}", option=WEIGHTS)
    if place.folder is None:
        raise UsageError(f"--weights DEFAULT: {spec} is a type, which has no weights; give a folder", option=WEIGHTS)
    if place.has(_ADAPTER):  # PEFT would load it, and import modules that it names
        why = f"the folder has an adapter ({_ADAPTER}), which hookcli does not load"
        raise UsageError(f"--weights DEFAULT: {why}; merge it, or give a file of weights", option=WEIGHTS)


def _filled(
    library: ModuleType, model_class: Any, config: object, place: _ConfigPlace, strict: bool
) -> tuple[nn.Module, str | None]:
    """The model with the weights beside its configuration, as Transformers loads them; a remark on missing ones."""
    logging = library.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        unfit = UserCode(lambda error: UsageError(f"--weights DEFAULT: {in_brief(error)}", option=WEIGHTS))
        with unfit, without_remote_code():
            model, loading = model_class.from_pretrained(
                place.folder,
                config=config,
                local_files_only=True,
                output_loading_info=True,
                trust_remote_code=False,
                weights_only=True,
            )
    finally:
        if shown:
            logging.enable_progress_bar()
    missing = sorted(map(str, loading["missing_keys"]))
    if not missing:
        return model, None
    message = f"--weights DEFAULT: the folder has no values for {len(missing)} tensors ({listed(missing, 3)})"
    if strict:
        raise UsageError(f"{message}: --no-strict leaves them random", option=WEIGHTS)
    return model, f"{message}: they are random"


@without_remote_code()
def _transforms(library: ModuleType, folder: str) -> Transforms:
    """The transforms of the image processor that lies beside the configuration."""
    processor = library.AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return lambda image: processor(images=image.convert("RGB"), return_tensors="pt")["pixel_values"][0]
