"""The clock of a program, and of hookcli's own work in it."""

from __future__ import annotations

import pytest

from hookcli.hooks import clock


def test_processor_time_leaves_out_what_others_on_the_machine_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds pass in hookcli's own work, in one of which the processor worked for it."""
    passed, worked = 0.0, 0.0
    monkeypatch.setattr(clock, "perf_counter", lambda: passed)
    monkeypatch.setattr(clock, "thread_time", lambda: worked)
    own = clock.ProgramClock()
    own.enter()
    worked = 1.0
    own.leave()
    assert own.processor == 0.0  # unless it is asked for
    own.count_processor(True)
    passed, worked = 5.0, 3.0
    own.enter()
    own.enter()
    passed, worked = 10.0, 3.5
    own.leave()
    assert (own.own, own.processor) == (5.0, 0.5)
    passed, worked = 15.0, 4.0
    own.leave()
    passed, worked = 99.0, 50.0
    assert (own.own, own.processor) == (10.0, 1.0)
