"""Two activities that run by turns and meet: each stops where it has something to compare until the other is there.

Only one of them runs at any time, so that nothing that the process has once (random state, switches, imported modules)
is disturbed by the other: what belongs to an activity is exchanged with the turn. What waits is neither copied nor
kept longer than until the other has come; copies are made only where the two come by in different orders.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

A, B = 0, 1


class World(Protocol):
    """What an activity has for itself of the process's state."""

    def enter(self) -> None:
        """Put it in place: the activity goes on."""

    def leave(self) -> None:
        """Take it away: the other's turn."""


class Stopped(BaseException):
    """Unwinds an activity whose fellow has failed. No `except Exception` of a model's code may catch it."""


class _Side(Generic[T]):
    def __init__(self, world: World) -> None:
        self.world = world
        self.gate = threading.Lock()
        self.gate.acquire()
        self.waiting: tuple[Hashable, T] | None = None
        self.parked: OrderedDict[Hashable, T] = OrderedDict()
        self.over = False
        self.error: BaseException | None = None


class Rendezvous(Generic[T]):
    """`meet(key, a, b)` is called for every key that both sides come by, `alone(side, key, thing)` for one's own.

    Where the sides come by in different orders, up to `patience` things of each are kept, as the copies that `keep`
    makes; what is then still waiting longest is given up as alone. The same for what the other never comes by.
    """

    def __init__(
        self,
        worlds: tuple[World, World],
        meet: Callable[[Hashable, T, T], None],
        alone: Callable[[int, Hashable, T], None],
        keep: Callable[[T], T],
        patience: int = 32,
    ) -> None:
        self._sides: tuple[_Side[T], _Side[T]] = (_Side(worlds[A]), _Side(worlds[B]))
        self._meet = meet
        self._alone = alone
        self._keep = keep
        self._patience = patience
        self._stopped = False

    def run(
        self, first: Callable[[], None], second: Callable[[], None]
    ) -> tuple[BaseException | None, BaseException | None]:
        """Run both, the first in this thread, and return what each raised. After an error the other is stopped."""
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
        """A side has something: compare it with what the other has of that key, or wait for the other.

        Raises Stopped where the other side has failed.
        """
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
        if other.waiting:  # for something else: one of the two has to go on, by turns
            if len(side.parked) <= len(other.parked):
                self._park(number)
                return
            self._park(1 - number)
        side.world.leave()
        other.world.enter()
        other.gate.release()
        side.gate.acquire()
        self._check()
        if side.waiting:  # the other is over, and did not come by here
            self._alone(number, *side.waiting)
            side.waiting = None

    def _park(self, number: int) -> None:
        side = self._sides[number]
        assert side.waiting is not None
        key, thing = side.waiting
        side.waiting = None
        side.parked[key] = self._keep(thing)
        if len(side.parked) > self._patience:
            self._alone(number, *side.parked.popitem(last=False))

    def _compare(self, number: int, key: Hashable, ours: T, theirs: T) -> None:
        self._meet(key, *((ours, theirs) if number == A else (theirs, ours)))

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
                side.world.enter()
            action()
        except Stopped:
            pass
        except BaseException as error:  # of any kind: who started the run tells it
            side.error = error
            self._stopped = True
        side.over = True
        side.world.leave()
        if not other.over:
            other.world.enter()
            if other.gate.locked():  # not so if an interrupt came between the other's turn and its taking it
                other.gate.release()
