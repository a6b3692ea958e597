"""Runs two sides by turns: each stops at things to compare until the other side has reached the same thing.

Only one side runs at any time, so that neither disturbs state that the process has only once (random state, switches,
imported modules): each side's own is exchanged with the turn. A thing that waits is not copied, and let go as soon as
the other side has come; copies are made only where the two come in different orders.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch

from hookcli.tensors.random_state import random_states, set_random_states

T = TypeVar("T")

A, B = 0, 1
Errors = tuple[BaseException | None, BaseException | None]
"""The errors of both sides."""


class SideState:
    """A side's own part of the process's state: in place from `enter` to `leave`, or while a call's block runs."""

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


class Stopped(BaseException):
    """Unwinds a side after the other has failed; no `except Exception` of a model's code may catch it."""


class _Side(Generic[T]):
    """One side: what it waits with, and what was put aside because the other came in another order."""

    def __init__(self, state: SideState) -> None:
        self.state = state
        self.gate = threading.Lock()
        self.gate.acquire()
        self.waiting: tuple[Hashable, T] | None = None
        self.parked: OrderedDict[Hashable, T] = OrderedDict()
        self.over = False
        self.error: BaseException | None = None


class Lockstep(Generic[T]):
    """Calls `both(key, a, b)` for each key that both sides reach, `alone(side, key, thing)` for one that only one does.

    If the sides reach keys in different orders, up to `patience` things of each are kept, as copies made by `keep`;
    beyond that the oldest is given up as alone.
    """

    def __init__(
        self,
        states: tuple[SideState, SideState],
        both: Callable[[Hashable, T, T], None],
        alone: Callable[[int, Hashable, T], None],
        keep: Callable[[T], T],
        patience: int = 32,
    ) -> None:
        self._sides: tuple[_Side[T], _Side[T]] = (_Side(states[A]), _Side(states[B]))
        self._both = both
        self._alone = alone
        self._keep = keep
        self._patience = patience
        self._stopped = False

    def run(self, first: Callable[[], None], second: Callable[[], None]) -> Errors:
        """Run both sides, the first in this thread, and return their errors. An error of one stops the other."""
        thread = threading.Thread(target=self._play, args=(B, second), name="hookcli-b", daemon=True)
        thread.start()
        try:
            self._play(A, first)
            thread.join()
        except KeyboardInterrupt as error:
            self._stopped = True
            self._sides[A].error = error
            thread.join()
        for number, side in enumerate(self._sides):
            for key, thing in side.parked.items():
                self._alone(number, key, thing)
        return self._sides[A].error, self._sides[B].error

    def arrive(self, number: int, key: Hashable, thing: T) -> None:
        """Compare a side's thing with the other side's of that key, or wait for it. Raises Stopped if that failed."""
        self._check()
        side, other = self._sides[number], self._sides[1 - number]
        if key in other.parked:
            self._compare(number, key, thing, other.parked.pop(key))
        elif other.waiting and other.waiting[0] == key:
            theirs, other.waiting = other.waiting[1], None
            self._compare(number, key, thing, theirs)
        elif other.over:
            self._alone(number, key, thing)
        else:
            side.waiting = key, thing
            self._wait(number)

    def _wait(self, number: int) -> None:
        side, other = self._sides[number], self._sides[1 - number]
        if other.waiting:  # with another key: one of the two has to go on, by turns
            if len(side.parked) <= len(other.parked):
                self._park(number)
                return
            self._park(1 - number)
        side.state.leave()
        other.state.enter()
        other.gate.release()
        side.gate.acquire()
        self._check()
        if side.waiting:  # the other is over and never reached this key
            self._alone(number, *side.waiting)
            side.waiting = None

    def _park(self, number: int) -> None:
        side = self._sides[number]
        assert side.waiting is not None
        (key, thing), side.waiting = side.waiting, None
        side.parked[key] = self._keep(thing)
        if len(side.parked) > self._patience:
            self._alone(number, *side.parked.popitem(last=False))

    def _compare(self, number: int, key: Hashable, ours: T, theirs: T) -> None:
        self._both(key, *((ours, theirs) if number == A else (theirs, ours)))

    def _check(self) -> None:
        if self._stopped:
            raise Stopped

    def _play(self, number: int, action: Callable[[], None]) -> None:
        side, other = self._sides[number], self._sides[1 - number]
        try:
            if number == B:
                side.gate.acquire()
                self._check()
            else:
                side.state.enter()
            action()
        except Stopped:
            pass
        except BaseException as error:  # `run` returns it, in the thread that can raise it
            side.error = error
            self._stopped = True
        side.over = True
        side.state.leave()
        if not other.over:
            other.state.enter()
            if other.gate.locked():  # it isn't if an interrupt came just as the other was given its turn
                other.gate.release()


class SourceTree(SideState):
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
        self._modules = {}
        for name, module in [*sys.modules.items()]:
            if self._before.get(name) is module:
                continue
            file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), None)
            if not file or module.__name__.partition(".")[0] == "hookcli":
                continue
            path = Path(file).resolve()
            if path.is_relative_to(self._folder) and "site-packages" not in path.parts:
                self._modules[name] = module
                del sys.modules[name]
        sys.modules.update({name: module for name, module in self._before.items() if name in self._modules})
        self._path, sys.path[:] = list(sys.path), self._outside


_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
)
"""Switches of the whole process; the kernels of attention hold for every device. Autocast is one of each thread."""


class ProcessState(SideState):
    """Random states, switches of attention and a source tree: as at its creation until first entered."""

    def __init__(self, devices: Iterable[torch.device], tree: SourceTree | None = None) -> None:
        self._devices = sorted(devices, key=str)
        self._tree = tree
        self._note()

    def enter(self) -> None:
        set_random_states(self._devices, self._states)
        for (_, switch), value in zip(_SWITCHES, self._values, strict=True):
            switch(value)
        if self._tree:
            self._tree.enter()

    def leave(self) -> None:
        """Keep the state as it is now, for the next turn."""
        self._note()
        if self._tree:
            self._tree.leave()

    def drew_as(self, other: ProcessState) -> bool:
        """True if both sides have drawn the same random numbers, as far as the generators tell."""
        return self._states.same(other._states)

    def _note(self) -> None:
        self._states = random_states(self._devices)
        self._values = [value() for value, _ in _SWITCHES]
