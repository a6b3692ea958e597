"""Runs a script as `__main__`.

As `runpy` and coverage.py's `execfile` do, with two differences: the module stays `__main__` after the run, since exit
handlers and threads may need it, and uncaught exceptions are shown by the script's own `sys.excepthook`.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from pkgutil import get_importer
from types import CodeType, ModuleType
from typing import Any

from hookcli.record.launching.ending import Ending, ending_of, leave_fork
from hookcli.record.launching.source import compiled


class Script(ABC):
    """Something that runs as `__main__`. `name` is for people, `stem` names files after it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.name = self.stem = target

    def run(self, args: Sequence[str]) -> Ending:
        """Run it with `args` after its name in `sys.argv`, and show what it raised, as `python` would.

        `sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` stay the script's, for what runs when the process ends;
        `restored()` puts them back. Not to be called while an exception is handled: the script would see it. Where the
        script forks and its child comes to the end of the script, too, the child ends here.
        """
        process = os.getpid()
        ending = ending_of(self._execute(args))
        if os.getpid() != process:
            leave_fork(ending)
        return ending

    def _execute(self, args: Sequence[str]) -> BaseException | None:
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        if "__mp_main__" in sys.modules:  # multiprocessing's second name for it, under which children pickle
            sys.modules["__mp_main__"] = main
        sys.excepthook = sys.__excepthook__  # Typer puts in its own
        sys.argv = [self.target, *args]
        sys.orig_argv = [sys.orig_argv[0], *self._options(), *sys.argv]
        sys.setrecursionlimit(sys.getrecursionlimit() + _used())
        try:
            exec(self._load(main), main.__dict__)
        except BaseException as error:  # which is how many scripts end
            return error
        return None

    def _options(self) -> Sequence[str]:
        return ()

    @abstractmethod
    def _load(self, main: ModuleType) -> CodeType:
        """Fill in the names that Python gives to `__main__`, set what is first on the path, and return the code."""


class File(Script):
    """A file of source or byte code, already read: it may be a pipe."""

    def __init__(self, target: str, content: bytes) -> None:
        super().__init__(target)
        self.name, self.stem, self.content = Path(target).name, Path(target).stem, content

    def _load(self, main: ModuleType) -> CodeType:
        path = _absolute(self.target)
        put_first(os.path.dirname(os.path.realpath(self.target)))  # noqa: PTH120
        if not path.endswith(".pyc"):
            _describe(main, path, SourceFileLoader("__main__", path))
            return compiled(self.content, path)
        loader = SourcelessFileLoader("__main__", path)
        _describe(main, path, loader)
        return _code(loader, "__main__")


class Archive(Script):
    """A folder or a zip file with a `__main__.py`."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.name = self.stem = Path(target).resolve().stem

    def _load(self, main: ModuleType) -> CodeType:
        path = _absolute(self.target)
        sys.path.insert(0, path) if sys.flags.safe_path else put_first(path)
        importer = get_importer(path)
        spec = importer.find_spec("__main__") if importer else None
        return _from_spec(main, spec, self.target)


class Module(Script):
    """A module, or the `__main__` of a package."""

    def _options(self) -> Sequence[str]:
        return ("-m",)

    def _load(self, main: ModuleType) -> CodeType:
        args = sys.argv[1:]
        sys.argv = ["-m", *args]  # while packages are imported
        _describe(main, None, BuiltinImporter)
        put_first(os.getcwd())  # noqa: PTH109
        spec = _import_packages(self.target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _import_packages(f"{self.target}.__main__")
        code = _from_spec(main, spec, self.target)
        sys.argv = [str(main.__file__), *args]
        return code


def put_first(folder: str) -> None:
    """Make a folder the first on the path, in the place of the one that Python put there for our own program.

    With `-P` or PYTHONSAFEPATH it put none there, and would not for the script.
    """
    if not sys.flags.safe_path:
        sys.path[0:1] = [folder]


@contextmanager
def restored() -> Iterator[None]:
    """Put back, at the end of the block, what `Script.run` leaves changed: for programs that go on after a script."""
    modules = {name: sys.modules.get(name) for name in ("__main__", "__mp_main__")}
    names = ("argv", "orig_argv", "excepthook")
    values = {name: getattr(sys, name) for name in names}
    path, limit = list(sys.path), sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.modules.update({name: module for name, module in modules.items() if module is not None})
        for name, value in values.items():
            setattr(sys, name, value)
        sys.path[:] = path
        sys.setrecursionlimit(limit)


def _used() -> int:
    """How much of the recursion limit is used up where this is called: under `python` the script has all of it.

    Found as the lowest limit that can be set, which also counts calls of C functions where CPython does (up to 3.11).
    """
    before = sys.getrecursionlimit()
    for limit in range(1, before):
        try:
            sys.setrecursionlimit(limit)
        except RecursionError:  # too low for where we are
            continue
        sys.setrecursionlimit(before)
        return limit - 2  # less this frame
    return 0


def _absolute(target: str) -> str:
    """As `python` makes `__file__` of its argument: not normalized, and links not resolved."""
    return target if os.path.isabs(target) else os.path.join(os.getcwd(), target)  # noqa: PTH109, PTH117, PTH118


def _import_packages(name: str) -> ModuleSpec | None:
    package = name.rpartition(".")[0]
    if package:
        __import__(package)  # not `import_module`, whose frames Python leaves in tracebacks
    return importlib.util.find_spec(name)


def _from_spec(main: ModuleType, spec: ModuleSpec | None, target: str) -> CodeType:
    if spec is None or spec.loader is None:
        raise ImportError(f"No module named {target}", name=target)
    _describe(main, spec.origin, spec.loader, spec)
    return _code(spec.loader, spec.name)


def _describe(main: ModuleType, file: str | None, loader: Any, spec: ModuleSpec | None = None) -> None:
    """The names of `__main__`, in Python's order."""
    package, cached = (spec.parent, spec.cached) if spec else (None, None)
    main.__dict__.update(
        __package__=package, __loader__=loader, __spec__=spec, __annotations__={}, __builtins__=builtins,
        __file__=file, __cached__=cached,
    )  # fmt: skip


def _code(loader: Any, name: str) -> CodeType:
    code = loader.get_code(name)
    if code is None:
        raise ImportError(f"No code object available for {name}", name=name)
    assert isinstance(code, CodeType)
    return code
