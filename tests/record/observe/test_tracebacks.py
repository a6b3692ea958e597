"""An error of the program passes through hookcli without a trace: its traceback has no frame of hookcli's."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from observing import observing
from torch import Tensor, nn

import hookcli

OURS = str(Path(hookcli.__file__).parent)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("the program's own")


def in_backward(model: nn.Module) -> None:
    Fails.apply(model(torch.randn(3, 4))).sum().backward()


def in_grad(model: nn.Module) -> None:
    torch.autograd.grad(Fails.apply(model(torch.randn(3, 4))).sum(), [*model.parameters()])


def in_step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step(lambda: Fails.apply(model(torch.randn(3, 4))).sum().backward())


def frames_of(program: Callable[[nn.Module], None]) -> list[tuple[str, str]]:
    """The files and functions in the traceback of a program's error, the outermost first."""
    with pytest.raises(ValueError, match="the program's own") as raised:
        program(nn.Linear(4, 2))
    return [(frame.filename, frame.name) for frame in traceback.extract_tb(raised.value.__traceback__)]


@pytest.mark.parametrize("program", [in_backward, in_grad, in_step])
def test_a_traceback_has_the_frames_that_it_has_without_hookcli(program: Callable[[nn.Module], None]) -> None:
    """But for the frames of PyTorch that run a module's hooks."""
    plain = frames_of(program)
    with observing():
        observed = frames_of(program)
    assert not [place for place in observed if place[0].startswith(OURS)]
    assert [place for place in observed if place[1] != "inner"] == plain
