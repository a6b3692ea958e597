"""Calls a function when a module has been imported.

A script may set environment variables before it imports torch (threads, devices, allocator settings), so hookcli must
not import it earlier.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def when_imported(name: str, then: Callable[[], object]) -> Iterator[None]:
    """Call `then` once, as soon as the module is imported during the block, or now if it is already."""
    if name in sys.modules:
        then()
        yield
        return
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """A finder that lets the others find the module, and wraps its loader."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with a wrapped loader; None for any other module."""
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(self, spec.loader, self._then)
                return spec
        return None


class _Loader(Loader):
    """The module's own loader, followed by a call of `then`."""

    def __init__(self, finder: _Finder, loader: Any, then: Callable[[], object]) -> None:
        self._finder = finder
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as its own loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, remove the finder and call `then`."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        with suppress(ValueError):
            sys.meta_path.remove(self._finder)
        self._then()
