"""Asks the source that serves a spec for the model's recipe."""

from __future__ import annotations

from collections.abc import Mapping

from hookcli import registry
from hookcli.errors import UsageError, class_name
from hookcli.sources.base import Recipe, Request
from hookcli.sources.identity import source_of
from hookcli.sources.state_dicts import is_file


def find_recipe(
    spec: str, args: Mapping[str, object] | None = None, weights: str | None = None, task: str | None = None
) -> Recipe:
    """The recipe for a spec, from the source that `source_of` names.

    `args` are passed to the model's function or class, `weights` names published weights (a file's name is left to
    `Setting.weights`), and `task` goes to sources that have tasks. Raises UsageError for a spec that its source can't
    serve.
    """
    name, rest = source_of(spec)
    source = registry.load("sources", name)
    if task is not None and not getattr(source, "has_tasks", False):
        raise UsageError(f"--task {task}: {name} models have no tasks; hf: models do", option="task")
    request = Request(rest, args or {}, None if weights is None or is_file(weights) else weights, task)
    with registry.guarded(source):
        recipe = source().recipe(request)
        if not isinstance(recipe, Recipe):
            raise TypeError(f"recipe() returned {class_name(recipe)}, not a Recipe")
    return recipe
