"""Processes that tests start end with them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress

import forks
import limits
import pytest
from ranks import RanksError, process_id, run_ranks, second_dies, stop_ranks


@pytest.mark.parametrize("fresh", [False, True])
def test_a_process_that_a_failed_test_has_left_is_ended(fresh: bool) -> None:
    code = "import os; os.write(1, b'on'); input()"
    with pytest.raises(AssertionError), forks.ended():
        process = forks.Popen([sys.executable, "-c", code], fresh=fresh, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.read(2) == b"on"
        raise AssertionError
    assert process.returncode == -9 and process.stdout.closed
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.sweep
def test_ranks_are_started_anew_after_one_has_died() -> None:
    before = run_ranks(2, process_id)
    assert run_ranks(2, process_id) == before
    os.kill(before[1], signal.SIGKILL)  # between two jobs
    after = []
    while not after:
        with suppress(RanksError):  # it was still dying
            after = run_ranks(2, process_id)
    assert not {*after} & {*before}
    with pytest.raises(RanksError, match="rank 1 died"):  # and not that rank 0, which waits for it, took too long
        run_ranks(2, second_dies)
    assert not {*run_ranks(2, process_id)} & {*after}
    stop_ranks(2)


def test_a_test_that_waits_for_ever_fails_and_tells_what_it_has_seen_and_for_which_process_it_waits() -> None:
    command = [sys.executable, "-c", "import os; os.write(1, b'on'); input()"]
    process = forks.Popen(command, fresh=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    seen = process.stdout.read(2)
    with pytest.raises(pytest.fail.Exception) as failure, limits.limited(0.3):
        while True:
            seen += os.read(process.stdout.fileno(), 100)
    lines = str(failure.value).splitlines()
    assert lines[0] == "this took more than 0.3 s" and any(line.endswith("seen = ...b'on'") for line in lines)
    assert any(re.match(rf"process {process.pid} \(S, .*\): {sys.executable} -c import os", line) for line in lines)
