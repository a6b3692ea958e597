"""Ctrl-C arrives, wherever in a step it comes: Python drops what is raised while something dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forks
import pytest
from support import swept

JOB = Path(__file__).with_name("interrupts_job.py")


def job(*what: str) -> str:
    tests = os.pathsep.join([str(JOB.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = forks.run(
        [sys.executable, str(JOB), *what], env={**os.environ, "PYTHONPATH": tests}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("every", ["15", swept("1")])
def test_an_interrupt_in_any_function_of_ours_arrives(every: str) -> None:
    assert job("ours", every) == "[]"


def test_interrupts_from_outside_all_arrive() -> None:
    assert job("outside") == "(40, 40)"
