"""Finds the program to start: a script or a module, which this Python runs, or a command that starts one.

Reads Python's own options in command lines, some of which keep it from loading hookcli.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import MAGIC_NUMBER
from itertools import accumulate
from pathlib import Path
from pkgutil import get_importer, iter_modules
from shutil import which

from hookcli.errors import UsageError, shortened
from hookcli.system.files import content, exists, is_file, is_folder, is_pipe, near_files, opened

_LOOKED = " (looked in the working directory and on sys.path)"


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start: its command line, the name to show, and `stem`, the base of file names."""

    argv: Sequence[str]
    name: str
    stem: str


def find(target: str, arguments: Sequence[str], module: bool) -> Program:
    """Find what `python TARGET`, `python -m TARGET` or the command TARGET would run. Raises UsageError for nothing."""
    if module:
        _check_module(target)
        return Program([*_python(), "-m", target, *arguments], target, target)
    path = Path(target)
    if exists(path) and not is_folder(path):
        if path.suffix not in (".py", ".pyc") and os.access(path, os.X_OK):
            return _command(target if os.sep in target else f".{os.sep}{target}", arguments)
        _check_file(target)
        script = f".{os.sep}{target}" if target.startswith("-") else target  # which Python takes for an option
        return Program([*_python(), script, *arguments], path.name, path.stem)
    importer = get_importer(target) if exists(path) else None
    if importer is not None and importer.find_spec("__main__") is not None:
        stem = path.resolve().stem
        return Program([*_python(), target, *arguments], stem, stem)
    if target and os.sep not in target and which(target):
        return _command(target, arguments)
    raise UsageError(_nothing_to_run(target, path))


def _nothing_to_run(target: str, path: Path) -> str:
    """The reason why this can't be run, and what may be meant: files with similar names, or a module."""
    if exists(path):
        scripts = sorted(script.name for script in path.glob("*.py"))
        listed = f"; scripts in the folder: {', '.join(scripts[:5])}" if scripts else ""
        return f"{target!r} has no __main__.py to run{listed}"
    kind = "script" if path.suffix or os.sep in target else "script or command"
    nothing = f"no {kind} {shortened(target)!r}"
    if near := near_files(path):
        return f"{nothing}{near}"
    if exists(script := path.with_name(f"{path.name}.py")):
        return f"{nothing}; did you mean {script}?"
    if _is_name(path.name) and path.parent == Path():
        with _as_with_m():
            if _locate(path.name) is not None:
                return f"{nothing}; did you mean the module, -m {path}?"
    return nothing if is_folder(path.parent) else f"{nothing} (there is no folder {str(path.parent)!r})"


def _python() -> list[str]:
    """This Python, with the options that it was started with."""
    return [sys.executable, *python_options(sys.orig_argv[1:])]


def _command(target: str, arguments: Sequence[str]) -> Program:
    """A command, named after the script among its arguments: train.py in `torchrun --nproc-per-node 4 train.py`."""
    script = next((word for word in arguments if Path(word).suffix in (".py", ".sh") and exists(Path(word))), target)
    return Program([target, *arguments], Path(script).name, Path(script).stem)


def _check_file(target: str) -> None:
    if is_pipe(target):  # which Python reads
        return
    try:
        with opened(target) as file:
            if target.endswith(".pyc") and file.read(len(MAGIC_NUMBER)) != MAGIC_NUMBER:
                raise UsageError(f"{target!r} was compiled by a Python other than this {sys.version.split()[0]}")
    except OSError as error:
        raise UsageError(f"can't read the script {target!r}: {error.strerror}") from error


def _check_module(name: str) -> None:
    """Raise UsageError if `python -m NAME` surely finds nothing to run. Imports no package: that is the program's."""
    if not _is_name(name):
        raise UsageError(f"{name!r} is not a module name; give package.module with -m")
    with _as_with_m():
        spec = _locate(name)
        if spec is None and _moves_its_modules(name):
            return
        if spec and (spec.submodule_search_locations is None or _locate(f"{name}.__main__") is not None):
            return
        stem = name.removesuffix(".py")
        if stem != name and (_locate(stem) is not None or exists(Path(name))):
            raise UsageError(f"no module {name!r}: give {stem!r}, or the file without -m")
        if spec is None:
            parent, _, last = name.rpartition(".")
            near = [f"{parent}.{module}".lstrip(".") for module in get_close_matches(last, _siblings(parent), n=3)]
            hint = f"; did you mean {' or '.join(near)}?" if near else _LOOKED
            raise UsageError(f"no module {name!r}{hint}")
        modules = ", ".join(f"{name}.{module}" for module in list(_siblings(name))[:5])
    raise UsageError(f"{name!r} is a package without a __main__" + (f"; modules in it: {modules}" if modules else ""))


def _is_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _siblings(package: str) -> Iterable[str]:
    spec = _locate(package) if package else None
    paths = (spec.submodule_search_locations if spec else None) if package else [_here()]
    return [module.name for module in iter_modules(paths)] if paths else ()


def _locate(name: str) -> ModuleSpec | None:
    """The spec of a module, as far as it can be found without importing its packages."""
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


def _moves_its_modules(name: str) -> bool:
    """True if a package above a module sets its `__path__`, which says where modules are."""
    for parent in accumulate(name.split(".")[:-1], "{}.{}".format):
        spec = _locate(parent)
        path = Path(spec.origin) if spec is not None and spec.origin else None
        if path is not None and path.suffix == ".py" and exists(path) and b"__path__" in content(path):
            return True
    return False


@contextmanager
def _as_with_m() -> Iterator[None]:
    """Look for modules where `python -m` does: first in the working directory, in place of hookcli's own folder."""
    before = list(sys.path)
    if not sys.flags.safe_path:
        sys.path[0:1] = [_here()]
    try:
        yield
    finally:
        sys.path[:] = before


def _here() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a string, as for `python -m`
    except FileNotFoundError:
        return ""


_PYTHON = re.compile(r"python[\d.]*t?")
_IGNORE = {"-I": "ignores PYTHONPATH", "-E": "ignores PYTHONPATH", "-S": "does not import sitecustomize"}


def why_unseen(argv: Sequence[str]) -> str:
    """Why a command's Python does not load hookcli (`python -I`), also after a `#!` line or `env`; else empty."""
    words = list(argv)
    if (line := _interpreter(words[0])) is not None:
        words = [*line, *words]
    if Path(words[0]).name == "env":
        words = [word for word in words[1:] if "=" not in word and word not in ("-S", "-i")] or [""]
    if not _PYTHON.fullmatch(Path(words[0]).name):
        return ""
    option = next((option for option in python_options(words[1:]) if option in _IGNORE), None)
    return f"{Path(words[0]).name} {option} {_IGNORE[option]}" if option else ""


def _interpreter(command: str) -> list[str] | None:
    path = which(command)
    if path is None:
        return None
    with suppress(OSError), opened(path) as file:
        line = file.readline(512)
        return shlex.split(line[2:].decode(errors="replace")) if line.startswith(b"#!") else None
    return None


def python_options(arguments: Sequence[str]) -> list[str]:
    """Python's own options among its arguments, one by one: -I, -X and dev of `python -IXdev train.py`."""
    options: list[str] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            options += [word, next(words, "")] if word == "--check-hash-based-pycs" else [word]
            continue
        for position, letter in enumerate(word[1:], 2):
            if letter in "cm":  # the program begins
                return options
            options.append(f"-{letter}")
            if letter in "XW":
                options.append(word[position:] or next(words, ""))
                break
    return options


def mentions(script: str, arguments: Sequence[str], options: Collection[str], spelled: Collection[str]) -> bool:
    """True if a script's own text names the first of these options among its arguments, or can't be read.

    The names in `spelled` are common words, and count only with their dashes.
    """
    typed = next((word for word in (argument.partition("=")[0] for argument in arguments) if word in options), "")
    try:
        text = content(script).decode() if typed and is_file(script) else typed
    except (OSError, ValueError):
        return True
    return typed in text or (typed not in spelled and typed[2:].replace("-", "_") in text)


_READS_ARGUMENTS = re.compile(
    r"(?i)argv|argpars|argument|\bargs?\b|\bparse|click|typer|\bfire\b|docopt|absl|hydra|tyro|\bflags|config|cli\b"
    r"|\bexec\b|runpy"
)
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)


def takes_no_arguments(script: str) -> bool:
    """True for a Python file in whose text, and in the text of files beside it that it imports, nothing reads a command
    line. False for one that imports a package beside it, or can't be read.
    """
    path = Path(script)
    if path.suffix != ".py" or not is_file(path):
        return False
    try:
        text = content(path).decode()
        beside = [path.with_name(name) for name in _IMPORTED.findall(text)]
        texts = [text, *(content(file).decode() for one in beside if is_file(file := one.with_suffix(".py")))]
    except (OSError, ValueError):
        return False
    return not any(map(is_folder, beside)) and not any(map(_READS_ARGUMENTS.search, texts))
