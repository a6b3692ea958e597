"""Models of one's own: `package.module:callable` or `path/to/file.py:callable`."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from hookcli.errors import ModelError, UsageError, unknown
from hookcli.sources.base import Recipe, Request

Example = tuple[Any, ...] | dict[str, Any]


class ImportPathSource:
    """A class or function that returns an nn.Module, or `(module, example inputs)`; or an nn.Module itself."""

    def recipe(self, request: Request) -> Recipe:
        target = load_object(request.spec)
        if isinstance(target, nn.Module):
            if request.args:
                raise UsageError(f"{request.spec} is a module already: it takes no --arg")
            return replace(_recipe(request, partial(copy.deepcopy, target)), ready=target)
        if not callable(target):
            raise UsageError(f"{request.spec} is {type(target).__name__}, not something that returns an nn.Module")
        _check_arguments(target, request)
        return _recipe(request, partial(target, **request.args))


def load_object(spec: str) -> Any:
    """What `package.module:name` or `path/to/file.py:name` names. Raises UsageError where there is no such thing."""
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f"{spec!r}: give package.module:name or path/to/file.py:name")
    is_file = place.endswith(".py") or "/" in place or Path(place).is_file()
    return _attribute(_from_file(place) if is_file else _from_package(place), name, place)


def _recipe(request: Request, call: Callable[[], Any]) -> Recipe:
    examples: WeakKeyDictionary[nn.Module, Example | None] = WeakKeyDictionary()

    def build() -> nn.Module:
        model, example = _model(call(), request.spec)
        examples[model] = example
        return model

    return Recipe(request.spec.rpartition("/")[2], build, example=examples.get)


def _model(made: Any, spec: str) -> tuple[nn.Module, Example | None]:
    """The model, and the inputs that came with it or that it names as Lightning does (`example_input_array`)."""
    example = None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        made, example = made
    if not isinstance(made, nn.Module):
        raise UsageError(f"{spec} returned {type(made).__name__}, not an nn.Module")
    example = getattr(made, "example_input_array", None) if example is None else example
    if isinstance(example, torch.Tensor):
        example = (example,)
    if isinstance(example, Mapping):
        return made, dict(example)
    return made, tuple(example) if example is not None else None


def _from_file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise UsageError(f"no file {place!r}" + (" (it is a folder)" if path.is_dir() else ""))
    if path.suffix != ".py":
        raise UsageError(f"{place!r} is not a Python file (.py)")
    spec = spec_from_file_location(path.stem, path.resolve())
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    with_folder = [str(path.resolve().parent), *sys.path]
    sys.path[:] = list(dict.fromkeys(with_folder))  # imports beside the file work, as under `python file.py`
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickling look their module up
    return _run(partial(spec.loader.exec_module, module), place, module)


def _from_package(place: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        missing = find_spec(place) is None
    except (ModuleNotFoundError, ValueError) as error:
        raise UsageError(f"no module {place!r} to import ({error})") from error
    except Exception as error:  # finding a submodule imports its package
        raise ModelError(f"importing {place} failed: {type(error).__name__}: {error}") from error
    if missing:
        raise UsageError(f"no module {place!r} to import (looked in the working directory and on sys.path)")
    return _run(partial(import_module, place), place)


def _run(importing: Callable[[], Any], place: str, module: ModuleType | None = None) -> ModuleType:
    """Import, and tell the user's failing code from ours."""
    try:
        imported = importing()
    except SyntaxError as error:
        file = Path(error.filename or place).name
        raise UsageError(f"{file} is not valid Python: line {error.lineno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{place} is not a Python file: {error}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"importing {place} failed: {type(error).__name__}: {error}") from error
    return module or imported


def _attribute(module: ModuleType, name: str, place: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{place}: {unknown('name', part, _makers(found))}")
        found = getattr(found, part)
    return found


def _makers(module: Any) -> Iterable[str]:
    """The names in a module that may make a model: its own classes and functions, and ready modules."""
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == getattr(module, "__name__", None)
        if not name.startswith("_") and ((callable(value) and own) or isinstance(value, nn.Module)):
            yield name


def _check_arguments(target: Callable[..., Any], request: Request) -> None:
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # built in C: let it speak for itself
    for name in request.args:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        if name not in signature.parameters and not takes_any:
            raise UsageError(unknown(f"argument of {request.spec}", name, signature.parameters))
    needed = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in request.args
    ]
    if needed:
        hint = " ".join(f"--arg {name}=..." for name in needed)
        raise UsageError(f"{request.spec} needs {'arguments' if len(needed) > 1 else 'an argument'}: give {hint}")
