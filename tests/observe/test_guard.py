"""What hookcli does in a program: one thread at a time, and none of its failures is the program's."""

from __future__ import annotations

import threading

import pytest

from hookcli.observe.guard import Guard


def free(guard: Guard) -> bool:
    """Whether another thread may enter."""
    entered = threading.Event()

    def enter() -> None:
        with guard:
            entered.set()

    threading.Thread(target=enter, daemon=True).start()
    return entered.wait(0.5)


def test_an_exception_is_told_and_goes_no_further() -> None:
    told: list[Exception] = []
    guard = Guard(told.append)
    with guard, guard:
        raise ValueError("ours")
    assert [str(error) for error in told] == ["ours"] and free(guard)


def test_what_ends_the_program_passes() -> None:
    told: list[Exception] = []
    guard = Guard(told.append)
    with pytest.raises(KeyboardInterrupt), guard:
        raise KeyboardInterrupt
    assert told == [] and free(guard)


def test_one_thread_at_a_time() -> None:
    guard = Guard(lambda error: None)
    with guard:
        assert not free(guard)
