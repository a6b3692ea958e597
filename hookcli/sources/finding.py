"""Finds the source that serves a spec, and asks it for the model's recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hookcli import registry
from hookcli.errors import class_name
from hookcli.sources.base import Recipe, Request
from hookcli.sources.weights import is_file

# A single letter before a colon is a Windows drive.
_PREFIX = re.compile(r"([A-Za-z][\w-]+):(.+)", re.DOTALL)


def find_recipe(spec: str, args: Mapping[str, Any] | None = None, weights: str | None = None) -> Recipe:
    """The recipe for a spec. `NAME:REST` is served by the source NAME; any other colon means an import path.

    `args` are passed to the model's function or class, and `weights` names published weights (a file's name is left to
    `Setting.weights`). Raises UsageError for a spec that its source can't serve.
    """
    prefix = _PREFIX.fullmatch(spec)
    if prefix and prefix[1] in registry.names("sources"):
        name, spec = prefix[1], prefix[2]
    else:
        name = "importpath" if ":" in spec else "torchvision"
    request = Request(spec, args or {}, None if weights is None or is_file(weights) else weights)
    source = registry.load("sources", name)
    with registry.guarded(source):
        recipe = source().recipe(request)
        if not isinstance(recipe, Recipe):
            raise TypeError(f"recipe() returned {class_name(recipe)}, not a Recipe")
    return recipe
