"""Ctrl-C arrives, wherever in a step it comes: Python drops what is raised while something dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forks
import pytest
import torch
from support import swept
from torch import nn

from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.session import HookSession
from hookcli.record.observe.observer import ErrorBoundary

JOB = Path(__file__).with_name("interrupts_job.py")


def job(*what: str) -> str:
    tests = os.pathsep.join([str(JOB.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = forks.run(
        [sys.executable, str(JOB), *what], env={**os.environ, "PYTHONPATH": tests}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.sweep
@pytest.mark.parametrize("every", ["90", swept("1")])
def test_an_interrupt_in_any_function_of_ours_arrives(every: str) -> None:
    assert job("ours", every) == "[]"


def test_interrupts_from_outside_all_arrive() -> None:
    assert job("outside") == "(40, 40)"


def test_grad_mode_is_as_before_where_an_interrupt_breaks_into_no_grad() -> None:
    def broken(*event: object) -> None:
        torch.set_grad_enabled(False)  # as PyTorch's `no_grad` leaves it if the interrupt comes in its own lines
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ErrorBoundary(pytest.fail, ProgramClock()):
        broken()
    assert torch.is_grad_enabled()
    model = nn.Linear(2, 1)
    with HookSession(model) as session, pytest.raises(KeyboardInterrupt):
        session.forward(broken)
        model(torch.ones(1, 2))
    assert torch.is_grad_enabled()
