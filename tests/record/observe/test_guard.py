"""What hookcli does in a program: none of its failures is the program's, and what the program raises is its own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from hookcli.hooks.clock import ProgramClock
from hookcli.record.observe.observer import ErrorBoundary


def test_an_exception_is_told_and_goes_no_further() -> None:
    told: list[Exception] = []
    guard = ErrorBoundary(told.append, ProgramClock())
    with guard, guard:
        raise ValueError("ours")
    assert [str(error) for error in told] == ["ours"]


def test_what_ends_the_program_passes() -> None:
    told: list[Exception] = []
    with pytest.raises(KeyboardInterrupt), ErrorBoundary(told.append, ProgramClock()):
        raise KeyboardInterrupt
    assert told == []


def late(*about: Any) -> None:
    raise TimeoutError("of the program")


class Late:
    def __call__(self, *about: Any) -> None:
        late()

    method = __call__


@pytest.mark.parametrize("handler", [late, partial(late, 1), Late(), Late().method])
def test_what_a_signal_handler_raises_passes(handler: Callable[..., None]) -> None:
    """A program that ends by SIGALRM what takes too long: Python calls the handler wherever it is, in ours too."""
    told: list[Exception] = []
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError, match="of the program"), ErrorBoundary(told.append, ProgramClock()):
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert told == []
    with ErrorBoundary(told.append, ProgramClock()):
        late()  # which is not a handler now
    assert len(told) == 1
