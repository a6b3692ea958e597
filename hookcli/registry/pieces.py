"""Imports and calls what manifests name.

A piece of another distribution that fails is left out, and `failures` says so. Errors of hookcli's own pieces pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from hookcli.errors import PluginError, class_name, in_brief
from hookcli.registry.capability import Capability, capabilities, load_text

failures: dict[str, None] = {}
"""A line on each piece that was left out, until it is said."""


@contextmanager
def left_out(one: Capability, piece: str) -> Iterator[None]:
    """A block that imports or calls this piece of a capability; an error in it ends the block alone."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        if one.distribution == "hookcli":
            raise
        why = str(error) if isinstance(error, PluginError) else in_brief(error)
        failures[f"{one}: {piece} is left out: {why}"] = None


def pieces(field: str, kind: type | tuple[type, ...] = object) -> list[tuple[Capability, Any]]:
    """The objects that manifests name in this field, each with its capability, but for those that fail to load.

    One of another type than `kind` fails, too.
    """
    loaded: list[tuple[Capability, Any]] = []
    for one in capabilities():
        target = getattr(one, field)
        with left_out(one, f"{field}={target!r}"):
            if target:
                piece = load_text(target)
                if not isinstance(piece, kind):
                    raise TypeError(f"it is {class_name(piece)}")
                loaded.append((one, piece))
    return loaded


def answers(field: str, *arguments: object) -> list[tuple[Capability, Any]]:
    """The results of the functions that manifests name in this field, but for those that fail."""
    results: list[tuple[Capability, Any]] = []
    for one, function in pieces(field):
        with left_out(one, f"{field}={getattr(one, field)!r}"):
            results.append((one, function(*arguments)))
    return results


def texts(values: Iterable[object]) -> list[str]:
    """These texts. Raises TypeError for another value among them."""
    every = list(values)
    if odd := [value for value in every if not isinstance(value, str)]:
        raise TypeError(f"it gave {class_name(odd[0])}, not a text")
    return cast("list[str]", every)
