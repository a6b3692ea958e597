"""Finds the recipe that a command line names, and builds its model for commands that do not run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hookcli.commands.options import Options
from hookcli.commands.output import remark
from hookcli.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from hookcli.commands.progress import Progress
    from hookcli.engine.run_info import RunInfo
    from hookcli.sources.base import Recipe


def find_recipe(spec: str, options: Options) -> Recipe:
    """The recipe for a spec with what --arg, --weights and --task say."""
    from hookcli.sources import finding

    return finding.find_recipe(spec, parse_args(options.arg), options.weights, options.task)


def built_model(
    spec: str, options: Options, progress: Progress, *, meta: bool, original: bool = False
) -> tuple[str, nn.Module, RunInfo]:
    """The name of a model, the model, without its input, and its description; on the meta device without values."""
    import torch

    from hookcli.engine.prepare import build
    from hookcli.engine.run_info import RunInfo, torchvision_version
    from hookcli.engine.setting import META, Setting

    recipe = find_recipe(spec, options)
    progress.stage(f"building {recipe.name}")
    setting = Setting(seed=options.seed, weights=options.weights, strict=options.strict)
    model, problem = build(recipe, replace(setting, device=META) if meta else setting, original=original)
    if problem:
        remark(problem, options)
    info = RunInfo(torch=torch.__version__, seed=options.seed, source=recipe.meta, torchvision=torchvision_version())
    return recipe.name, model, info


def parse_args(given: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` pairs: values as Python literals (or true, false, null) where possible, else as text."""
    from ast import literal_eval

    named = {"true": True, "false": False, "null": None, "none": None}
    parsed: dict[str, Any] = {}
    for item in given:
        key, separator, text = item.partition("=")
        if not separator or not key.isidentifier():
            raise UsageError(f"--arg {item!r}: give key=value, as in --arg num_classes=10", option="arg")
        try:
            parsed[key] = named[text.lower()] if text.lower() in named else literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            parsed[key] = text
    return parsed
