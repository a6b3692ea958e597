"""Processes that tests start end with them."""

from __future__ import annotations

import os
import subprocess
import sys

import forks
import pytest


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
