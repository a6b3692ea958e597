"""Finds the recipe that a command line names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hookcli.commands.options import Options
from hookcli.errors import UsageError

if TYPE_CHECKING:
    from hookcli.sources.base import Recipe


def find_recipe(spec: str, options: Options) -> Recipe:
    """The recipe for a spec with what --arg, --weights and --task say."""
    from hookcli.sources import finding

    return finding.find_recipe(spec, parse_args(options.arg), options.weights, options.task)


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
