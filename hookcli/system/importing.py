"""Imports objects by name: `package.module:name` or `path/to/file.py:name`."""

from __future__ import annotations

import ast
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hookcli.errors import ModelError, UsageError, UserCode, in_brief, message_of, shortened, unknown
from hookcli.system.files import content, is_file, is_folder, near_files

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = f"{os.sep}site-packages{os.sep}"


def load_object(spec: str) -> Any:
    """Import the object named by `package.module:name` or `path/to/file.py:name`. Raises UsageError if none exists."""
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f"{shortened(spec)!r}: give package.module:name or path/to/file.py:name")
    if "::" in spec:
        raise UsageError(f"{spec!r}: one colon is enough; did you mean {re.sub('::+', ':', spec)}?")
    named: object
    if place.endswith(".py") or "/" in place or is_file(place):
        named = _from_file(place)
    else:
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        with _blaming(place):  # finding a submodule imports its package
            try:
                missing = find_spec(place) is None
            except (ModuleNotFoundError, ValueError) as error:
                raise UsageError(f"no module {place!r} to import ({message_of(error)})") from error
        if missing:
            raise UsageError(f"no module {place!r} to import (looked in the working directory and on sys.path)")
        named = _run(partial(import_module, place), place)
    for part in name.split("."):
        with _blaming(place):  # a module or class may define __getattr__
            if not hasattr(named, part):
                raise UsageError(f"{place}: {unknown('name', part, _makers(named))}")
            named = getattr(named, part)
    return named


def _from_file(place: str) -> ModuleType:
    path = Path(place)
    if not is_file(path):
        wrong = " (it is a folder)" if is_folder(path) else near_files(path)
        raise UsageError(f"no file {shortened(place)!r}{wrong}")
    if path.suffix != ".py":
        raise UsageError(f"{place!r} is not a Python file (.py)")
    if name := name_in_package(path):
        root = path.resolve().parents[name.count(".") + (path.stem == "__init__")]
        sys.path[:] = list(dict.fromkeys([str(root), *sys.path]))
        module = _run(partial(import_module, name), place)
        if not (module.__file__ and path.samefile(module.__file__)):
            raise UsageError(f"{place} imports relatively, as {name}, but that is {module.__file__}")
        return module
    spec = spec_from_file_location(path.stem, path.resolve())
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    with_folder = [str(path.resolve().parent), *sys.path]
    sys.path[:] = list(dict.fromkeys(with_folder))  # the file can import its neighbours, as under `python file.py`
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look up their module
    return _run(partial(spec.loader.exec_module, module), place, module)


def name_in_package(path: Path) -> str:
    """The name by which a file is imported that begins with relative imports: `vit.model` of vit/model.py that has
    `from .layers import Block`; "" for other files, which need no package.

    Only statements at the top level count: one within `try` has another way. The package reaches as far up as there is
    an `__init__.py`, or as the imports (`from ..layers`) do.
    """
    try:
        body = ast.parse(content(path)).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""
    levels = max((node.level for node in body if isinstance(node, ast.ImportFrom)), default=0)
    folders = path.resolve().parents
    while levels and levels < len(folders) - 1 and is_file(folders[levels] / "__init__.py"):
        levels += 1
    names = [folder.name for folder in reversed(folders[:levels])] + [path.stem] * (path.stem != "__init__")
    return ".".join(names) if levels and all(map(str.isidentifier, names)) else ""


def _run(importing: Callable[[], Any], place: str, module: ModuleType | None = None) -> ModuleType:
    """Run the import; errors raised by the imported code become hookcli's own."""
    with _blaming(place):
        try:
            imported = importing()
        except SyntaxError as error:
            file = Path(error.filename or place).name
            where = f"line {error.lineno}: " if error.lineno else ""
            raise UsageError(f"{file} is not valid Python: {where}{shortened(error.msg)}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{place} is not a Python file: {error}") from error
        except ValueError as error:
            if "null bytes" in str(error):  # a SyntaxError from Python 3.11.4 on
                raise UsageError(f"{place} is not valid Python: {error}") from error
            raise
    return module or imported


def _blaming(place: str) -> AbstractContextManager[None]:
    """Make a ModelError of whatever the module raises."""
    return UserCode(lambda error: ModelError(f"importing {place} failed: {in_brief(error)}{_line(error)}"))


def _line(error: BaseException) -> str:
    """The innermost line of the user's own code that an import had reached, as ` at net.py:7`; "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith((_OURS, "<")) and _LIBRARIES not in frame.filename
    ]
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _makers(module: object) -> Iterable[str]:
    """Yield the names of objects that may make a model: nn.Modules, their classes, and what a module itself defines."""
    module_class = getattr(sys.modules.get("torch.nn"), "Module", ())  # without torch, no object is an nn.Module
    within = getattr(module, "__name__", "")
    for name, value in getattr(module, "__dict__", {}).items():
        place = str(getattr(value, "__module__", None))
        defined_here = callable(value) and place == within
        # a package exports classes of its parts; a file's imports are bases and layers of its models
        exported = isinstance(value, type) and issubclass(value, module_class) and place.startswith(f"{within}.")
        if not name.startswith("_") and (defined_here or exported or isinstance(value, module_class)):
            yield name
