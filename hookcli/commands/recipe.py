"""From a model's spec to its recipe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hookcli import registry
from hookcli.commands.options import Options
from hookcli.errors import UsageError, class_name

if TYPE_CHECKING:
    from hookcli.sources.base import Recipe

# A single letter before a colon is a Windows drive.
_PREFIX = re.compile(r"([A-Za-z][\w-]+):(.+)", re.DOTALL)


def find_recipe(spec: str, options: Options) -> Recipe:
    """Ask the source that the spec names. `NAME:REST` goes to source NAME; any other colon means an import path."""
    from hookcli.sources.base import Recipe, Request

    prefix = _PREFIX.fullmatch(spec)
    if prefix and prefix[1] in registry.names("sources"):
        name, spec = prefix[1], prefix[2]
    else:
        name = "importpath" if ":" in spec else "torchvision"
    weights = None
    if options.weights:
        from hookcli.sources.weights import is_file

        weights = None if is_file(options.weights) else options.weights
    request = Request(spec, parse_args(options.arg), weights)
    source = registry.load("sources", name)
    with registry.guarded(source):
        recipe = source().recipe(request)
        if not isinstance(recipe, Recipe):
            raise TypeError(f"recipe() returned {class_name(recipe)}, not a Recipe")
    return recipe


def parse_args(given: Sequence[str]) -> dict[str, Any]:
    """`key=value` pairs; values as Python literals (or true, false, null) where they are any, else as text."""
    from ast import literal_eval

    named = {"true": True, "false": False, "null": None, "none": None}
    parsed: dict[str, Any] = {}
    for item in given:
        key, separator, text = item.partition("=")
        if not separator or not key.isidentifier():
            raise UsageError(f"--arg {item!r}: give key=value, as in --arg num_classes=10")
        try:
            parsed[key] = named[text.lower()] if text.lower() in named else literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            parsed[key] = text
    return parsed
