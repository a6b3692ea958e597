"""The origin of a callable: its name, the file and line of its code, and the modules that it refers to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from hookcli.system.files import relative
from hookcli.system.handlers import code_of

BUILT_IN = "(built in)"


@dataclass(frozen=True, slots=True)
class Origin:
    """A callable's qualified name, and where its code begins. `line` is None if it has no Python code."""

    function: str
    file: str
    line: int | None


def origin(call: object) -> Origin:
    """Find a callable's name and code: for a partial, its function's; for an object, its `__call__`'s.

    Looks through decorators that use `functools.wraps`. Paths are relative to the working directory or site-packages,
    else absolute.
    """
    code = _code(call)
    if code is None:
        return Origin(_name(call), BUILT_IN, None)
    return Origin(_name(call), shown_path(code.co_filename), code.co_firstlineno)


def _name(call: object) -> str:
    if isinstance(call, functools.partial):
        return f"partial({_name(call.func)})"
    if isinstance(call, torch.jit.ScriptFunction):
        return str(call.name)
    if isinstance(call, MethodType):
        return _name(call.__func__)
    name = vars(call).get("__qualname__") if not isinstance(call, type) and hasattr(call, "__dict__") else None
    if name is None and (isinstance(call, (FunctionType, type)) or inspect.isroutine(call)):
        name = getattr(call, "__qualname__", None)
    if name is not None:
        return str(name)
    return f"{type(call).__qualname__}.{'forward' if isinstance(call, nn.Module) else '__call__'}"


def _code(call: Any) -> CodeType | None:
    """The code of a callable, of a module its `forward`; None if it is written in C."""
    while isinstance(call, functools.partial):
        call = call.func
    return code_of(getattr(type(call), "forward", None) if isinstance(call, nn.Module) else call)


INSTALLED = ("site-packages", "dist-packages")
"""The folders of installed packages."""


def shown_path(filename: str) -> str:
    """Return a path relative to site-packages or to the working directory, else in full; "" for a notebook's cell."""
    path = Path(filename)
    if path.parent.name.startswith("ipykernel_"):
        return "notebook cell"
    for folder in INSTALLED:
        if folder in path.parts:
            return str(Path(*path.parts[path.parts.index(folder) + 1 :]))
    return relative(filename)


def held_modules(call: object) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that a callable refers to, each with how: `bound to` or `closes over`."""
    if isinstance(call, functools.partial):
        yield from held_modules(call.func)
        for value in (*call.args, *call.keywords.values()):
            if isinstance(value, nn.Module):
                yield "bound to", value
    elif isinstance(call, MethodType):
        if isinstance(call.__self__, nn.Module):
            yield "bound to", call.__self__
    else:
        for cell in getattr(call, "__closure__", None) or ():
            value = _contents(cell)
            if isinstance(value, nn.Module):
                yield "closes over", value
            elif isinstance(value, (FunctionType, MethodType, functools.partial)) and value is not call:
                # Only one step deep: functions may close over each other in a circle.
                held = [*map(_contents, getattr(value, "__closure__", None) or ()), getattr(value, "__self__", None)]
                yield from (("closes over", module) for module in held if isinstance(module, nn.Module))


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None
