"""Finds the script to run: a file, a folder or archive with a `__main__`, or a module by name."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from pkgutil import get_importer, iter_modules

from hookcli.errors import UsageError, shortened
from hookcli.record.launching.running import Archive, File, Module, Script, put_first
from hookcli.system.files import exists, is_folder


def find(target: str, module: bool) -> Script:
    """Find the script that `python TARGET` or `python -m TARGET` would run. Raises UsageError if there is none."""
    if module:
        return _module(target)
    path = Path(target)
    if not exists(path):
        raise UsageError(f"no script {shortened(target)!r}{_suggestion(path)}")
    importer = get_importer(target)  # for folders and zip files
    if importer is None:
        return _file(target)
    if importer.find_spec("__main__") is None:
        scripts = sorted(found.name for found in path.glob("*.py")) if is_folder(path) else []
        listed = f"; scripts in the folder: {', '.join(scripts[:5])}" if scripts else ""
        raise UsageError(f"{target!r} has no __main__.py to run{listed}")
    return Archive(target)


def _file(target: str) -> Script:
    try:
        content = Path(target).read_bytes()  # read once: it may be a pipe
    except OSError as error:
        raise UsageError(f"can't read the script {target!r}: {error.strerror}") from error
    if target.endswith(".pyc") and not content.startswith(MAGIC_NUMBER):
        raise UsageError(f"{target!r} was compiled by a Python other than this {sys.version.split()[0]}")
    return File(target, content)


def _suggestion(path: Path) -> str:
    """A suggestion: files with similar names, or a module."""
    if is_folder(path.parent):
        scripts = [found.name for found in path.parent.iterdir() if found.suffix == ".py"]
        near = get_close_matches(path.name, scripts, n=3) or [name for name in scripts if name == f"{path.name}.py"]
        if near:
            return f"; did you mean {' or '.join(str(path.with_name(name)) for name in near)}?"
    if _is_name(path.name) and path.parent == Path() and _exists(path.name):
        return f"; did you mean the module, -m {path}?"
    return "" if is_folder(path.parent) else f" (there is no folder {str(path.parent)!r})"


def _module(name: str) -> Script:
    stem = name.removesuffix(".py")
    if not _is_name(name):
        raise UsageError(f"{name!r} is not a module name; give package.module with -m")
    if _exists(name):
        return Module(name)
    if stem != name and (_exists(stem) or exists(name)):
        raise UsageError(f"no module {name!r}: give {stem!r}, or the file without -m")
    if _exists(name, runs=False):
        modules = ", ".join(f"{name}.{found}" for found in list(_siblings(name))[:5])
        raise UsageError(
            f"{name!r} is a package without a __main__" + (f"; modules in it: {modules}" if modules else "")
        )
    raise UsageError(f"no module {name!r}{_nearest(name)}")


def _is_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _nearest(name: str) -> str:
    parent, _, last = name.rpartition(".")
    near = get_close_matches(last, _siblings(parent), n=3)
    if near:
        return f"; did you mean {' or '.join(f'{parent}.{found}' if parent else found for found in near)}?"
    return " (looked in the working directory and on sys.path)"


def _siblings(package: str) -> Iterable[str]:
    """The modules in a package, or in the working directory."""
    if not package:
        return [found.name for found in iter_modules([_here()])]
    with _as_with_m():
        spec = _locate(package)
    return [found.name for found in iter_modules(spec.submodule_search_locations)] if spec else ()


def _exists(name: str, *, runs: bool = True) -> bool:
    """True if a module exists. `runs`: and can be run, which takes a `__main__` in a package."""
    with _as_with_m():
        spec = _locate(name)
        if spec is not None and spec.submodule_search_locations is not None and runs:
            spec = _locate(f"{name}.__main__")
        return spec is not None or (runs and "." in name and _appears(name))


def _locate(name: str) -> ModuleSpec | None:
    """The spec of a module, as far as it can be found without importing its packages, whose code is the script's."""
    top, *rest = name.split(".")
    if top == "__main__":  # hookcli itself
        return None
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module that is loaded, but has no spec
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


def _appears(name: str) -> bool:
    """True if a module exists once its packages are imported, which may change where they look.

    Imports packages only: for `-m train.py` it would import, and so run, the script itself.
    """
    package = _locate(name.partition(".")[0])
    if package is None or package.submodule_search_locations is None:
        return False
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        return not f"{name}.".startswith(f"{error.name}.")
    except KeyboardInterrupt:
        raise
    except BaseException:  # running it will report this as python does
        return True
    return spec is not None and spec.submodule_search_locations is None


@contextmanager
def _as_with_m() -> Iterator[None]:
    before = list(sys.path)
    put_first(_here())
    try:
        yield
    finally:
        sys.path[:] = before


def _here() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a string, as for `python -m`
    except FileNotFoundError:
        return ""
