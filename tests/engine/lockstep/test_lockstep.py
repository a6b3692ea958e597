"""Two activities meet wherever they come by the same key, in whatever order, and never wait for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookcli.engine.lockstep.lockstep import A, B, Lockstep


class Log:
    """What happened, and whose turn it was."""

    def __init__(self) -> None:
        self.met: list[tuple[Any, Any, Any]] = []
        self.alone: list[tuple[int, Any]] = []
        self.copies = 0
        self.inside: list[int] = []

    def lockstep(self, patience: int = 32) -> Lockstep[Any]:
        return Lockstep(
            (_World(self, A), _World(self, B)),
            lambda key, a, b: self.met.append((key, a, b)),
            lambda side, key, thing: self.alone.append((side, key)),
            self._keep,
            patience,
        )

    def _keep(self, thing: Any) -> Any:
        self.copies += 1
        return thing


class _World:
    def __init__(self, log: Log, side: int) -> None:
        self.log, self.side = log, side

    def enter(self) -> None:
        assert not self.log.inside, "both at once"
        self.log.inside.append(self.side)

    def leave(self) -> None:
        assert self.log.inside == [self.side]
        self.log.inside.remove(self.side)


def walk(lockstep: Lockstep[Any], side: int, keys: Sequence[Any]) -> Callable[[], None]:
    def go() -> None:
        for key in keys:
            lockstep.arrive(side, key, ("ab"[side], key))

    return go


def run(a: Sequence[Any], b: Sequence[Any], patience: int = 32) -> Log:
    log = Log()
    lockstep = log.lockstep(patience)
    assert lockstep.run(walk(lockstep, A, a), walk(lockstep, B, b)) == (None, None)
    assert not log.inside
    assert all(one == ("a", key) and other == ("b", key) for key, one, other in log.met)
    return log


def test_the_same_order_needs_no_copy() -> None:
    log = run("abcdef", "abcdef")
    assert [key for key, _, _ in log.met] == list("abcdef") and log.copies == 0 and not log.alone


@pytest.mark.parametrize(
    ("a", "b"), [("abxcde", "abcde"), ("abcde", "abxcde"), ("abcde", "abxyzcde"), ("", "ab"), ("ab", "")]
)
def test_what_one_has_more_is_told_and_the_rest_meets(a: str, b: str) -> None:
    log = run(a, b)
    assert {key for key, _, _ in log.met} == set(a) & set(b)
    assert set(log.alone) == {(A, key) for key in set(a) - set(b)} | {(B, key) for key in set(b) - set(a)}


def test_another_order_meets_over_copies() -> None:
    log = run("abcd", "badc")
    assert sorted(key for key, _, _ in log.met) == list("abcd") and not log.alone and log.copies


@given(st.permutations(range(12)), st.permutations(range(12)), st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_any_orders(a: list[int], b: list[int], without_a: set[int], without_b: set[int]) -> None:
    a, b = [k for k in a if k not in without_a], [k for k in b if k not in without_b]
    log = run(a, b)
    assert {key for key, _, _ in log.met} == set(a) & set(b)
    assert {key for _, key in log.alone} == set(a) ^ set(b) and len(log.alone) == len(set(a) ^ set(b))


def test_copies_are_bounded() -> None:
    """Entirely different: of each side at most `patience` things are kept at a time."""
    held: list[int] = []
    log = Log()
    lockstep = log.lockstep(patience=3)
    log._keep = lambda thing: held.append(max(len(side.parked) for side in lockstep._sides)) or thing  # type: ignore
    lockstep._keep = log._keep
    lockstep.run(walk(lockstep, A, range(100)), walk(lockstep, B, range(100, 200)))
    assert len(log.alone) == 200 and not log.met and max(held) <= 3


@pytest.mark.parametrize("failing", [A, B])
def test_a_failure_stops_the_other_and_is_returned(failing: int) -> None:
    log = Log()
    lockstep = log.lockstep()
    went_on = []

    def fail() -> None:
        walk(lockstep, failing, "ab")()
        raise ZeroDivisionError

    def go() -> None:
        for key in "abcdef":
            try:
                lockstep.arrive(1 - failing, key, ("ab"[1 - failing], key))
            except Exception:  # as a model's own code may catch
                went_on.append(key)
        went_on.append("to the end")

    errors = lockstep.run(*((fail, go) if failing == A else (go, fail)))
    assert isinstance(errors[failing], ZeroDivisionError) and errors[1 - failing] is None
    assert [key for key, _, _ in log.met] == ["a", "b"] and not went_on and not log.inside
    assert not any(thread.name == "hookcli-b" for thread in threading.enumerate())


def test_what_is_compared_stands_still() -> None:
    """While two things are compared neither side runs."""
    steps: list[str] = []

    def meet(key: Any, a: Any, b: Any) -> None:
        before = len(steps)
        time.sleep(0.01)
        assert len(steps) == before

    log = Log()
    lockstep = log.lockstep()
    lockstep._meet = meet

    def go(side: int) -> Callable[[], None]:
        def act() -> None:
            for key in range(5):
                steps.append("ab"[side])
                lockstep.arrive(side, key, None)

        return act

    assert lockstep.run(go(A), go(B)) == (None, None)
