"""Exchanges each model's own part of the process's state: random states, switches, imported modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from hookcli.tensors.random_state import random_states, set_random_states


class _Turns:
    """State that is in place from `enter` to `leave`; a call gives a context manager of both."""

    def enter(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()


class SourceTree(_Turns):
    """Modules imported from one folder, apart from others of the same names; older and installed ones are shared."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._modules: dict[str, ModuleType] = {}
        self._path: list[str] | None = None
        self._before: dict[str, ModuleType] = {}
        self._outside: list[str] = []

    def enter(self) -> None:
        self._before, self._outside = dict(sys.modules), list(sys.path)
        sys.modules.update(self._modules)
        sys.path[:] = self._path or [str(self._folder), *sys.path]

    def leave(self) -> None:
        new = {name: module for name, module in sys.modules.items() if self._before.get(name) is not module}
        self._modules = {name: module for name, module in new.items() if self._owns(module)}
        for name in self._modules:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in self._before.items() if name in self._modules})
        self._path, sys.path[:] = list(sys.path), self._outside

    def _owns(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), None)
        if not file or module.__name__.partition(".")[0] == "hookcli":
            return False
        path = Path(file).resolve()
        return path.is_relative_to(self._folder) and "site-packages" not in path.parts


class ProcessState(_Turns):
    """Random states, the switch of fused attention and a source tree: as at its creation until first entered."""

    def __init__(self, devices: Iterable[torch.device], tree: SourceTree | None = None) -> None:
        self._devices = sorted(devices, key=str)
        self._tree = tree
        self._note()

    def enter(self) -> None:
        set_random_states(self._devices, self._states)
        torch.backends.mha.set_fastpath_enabled(self._fastpath)
        if self._tree:
            self._tree.enter()

    def leave(self) -> None:
        """Keep the state as it is now, for the next turn."""
        self._note()
        if self._tree:
            self._tree.leave()

    def _note(self) -> None:
        self._states = random_states(self._devices)
        self._fastpath = torch.backends.mha.get_fastpath_enabled()
