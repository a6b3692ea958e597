"""Runs a script as `__main__`.

Works like `runpy` and coverage.py's `execfile`, with two differences: the module stays `__main__` after the run, since
exit handlers and threads may need it, and uncaught exceptions are shown by the script's own `sys.excepthook`.
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
from typing import Any, ClassVar

from hookcli.record.launching.compiling import compiled
from hookcli.record.launching.ending import Ending, ending_of, leave_fork


class Script(ABC):
    """Code to run as `__main__`. `name` is its display name, `stem` the base of file names."""

    options: ClassVar[Sequence[str]] = ()
    """Options of `python` before its target."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.name = self.stem = target

    def run(self, args: Sequence[str]) -> Ending:
        """Run the script with `args` in `sys.argv`, and show an uncaught exception as `python` would.

        `sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` stay the script's, for exit handlers; `restored()` puts
        them back. Must not be called while an exception is being handled: the script would see it. A forked child that
        reaches the end of the script ends here.
        """
        process = os.getpid()
        ending = ending_of(self._execute(args))
        if os.getpid() != process:
            leave_fork(ending)
        return ending

    def _execute(self, args: Sequence[str]) -> BaseException | None:
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        if "__mp_main__" in sys.modules:  # multiprocessing's other name for it, under which children pickle
            sys.modules["__mp_main__"] = main
        sys.excepthook = sys.__excepthook__  # Typer installs its own
        sys.argv = [self.target, *args]
        sys.orig_argv = [sys.orig_argv[0], *self.options, *sys.argv]
        sys.setrecursionlimit(sys.getrecursionlimit() + _used())
        try:
            exec(self._load(main), main.__dict__)
        except BaseException as error:  # SystemExit too, by which many scripts end
            return error
        return None

    @abstractmethod
    def _load(self, main: ModuleType) -> CodeType:
        """Fill in the names that Python sets in `__main__`, set the first entry of `sys.path`, and return the code."""


class File(Script):
    """A file of source or byte code, read already since it may be a pipe."""

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
    """A module, or the `__main__` of a package, by name."""

    options = ("-m",)

    def _load(self, main: ModuleType) -> CodeType:
        args = sys.argv[1:]
        sys.argv = ["-m", *args]  # as under python while packages are imported
        _describe(main, None, BuiltinImporter)
        put_first(os.getcwd())  # noqa: PTH109
        spec = _import_packages(self.target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _import_packages(f"{self.target}.__main__")
        code = _from_spec(main, spec, self.target)
        sys.argv = [str(main.__file__), *args]
        return code


def put_first(folder: str) -> None:
    """Put a folder first on `sys.path`, replacing the one that Python put there for hookcli.

    With `-P` or PYTHONSAFEPATH Python puts none there, for neither of them.
    """
    if not sys.flags.safe_path:
        sys.path[0:1] = [folder]


@contextmanager
def restored() -> Iterator[None]:
    """Undo the changes of `Script.run` at the end of the block, for programs that continue after a script."""
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
    """Return how much of the recursion limit is in use here; under `python` the script has all of it.

    Found as the lowest limit that can be set, which includes calls of C functions if CPython counts them (up to 3.11).
    """
    before = sys.getrecursionlimit()
    for limit in range(1, before):
        try:
            sys.setrecursionlimit(limit)
        except RecursionError:  # lower than the current depth
            continue
        sys.setrecursionlimit(before)
        return limit - 2  # without this frame
    return 0


def _absolute(target: str) -> str:
    """The path as `python` sets `__file__`: absolute, but neither normalized nor with links resolved."""
    return target if os.path.isabs(target) else os.path.join(os.getcwd(), target)  # noqa: PTH109, PTH117, PTH118


def _import_packages(name: str) -> ModuleSpec | None:
    package = name.rpartition(".")[0]
    if package:
        __import__(package)  # `import_module` would leave its frames in tracebacks
    return importlib.util.find_spec(name)


def _from_spec(main: ModuleType, spec: ModuleSpec | None, target: str) -> CodeType:
    if spec is None or spec.loader is None:
        raise ImportError(f"No module named {target}", name=target)
    _describe(main, spec.origin, spec.loader, spec)
    return _code(spec.loader, spec.name)


def _describe(main: ModuleType, file: str | None, loader: Any, spec: ModuleSpec | None = None) -> None:
    """Set the module attributes of `__main__`, in Python's order."""
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
