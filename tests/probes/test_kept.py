"""Memory that is kept for backward, where regions run again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.engine.capture import capture
from hookcli.hooks.kinds import HookKind

SAVED = (HookKind.SAVED_TENSOR_PACK, HookKind.SAVED_TENSOR_UNPACK)
ROWS, WIDTH = 64, 32
INPUT = ROWS * WIDTH * 4  # bytes


class Blocks(nn.Module):
    """Blocks of which each keeps its input and the result of a ReLU, twice as wide, or runs again."""

    def __init__(self, reentrant: bool | None, run: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.reentrant, self.run = reentrant, run
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            run = self.run(block)
            x = run(x) if self.reentrant is None else checkpoint(run, x, use_reentrant=self.reentrant)
        return x


def kept(model: nn.Module, x: Tensor) -> int:
    [report] = capture(model, x, [TraceProbe(SAVED)])
    assert sum(row["kept"] or 0 for row in report.rows) == report.totals["kept_bytes"]
    return int(report.totals["kept_bytes"])


def as_functions(block: nn.Module) -> Callable[[Tensor], Tensor]:
    """The block without its modules: no hook tells that it runs again."""
    first, _, second = block

    def run(x: Tensor) -> Tensor:
        hidden = functional.linear(x, first.weight, first.bias).relu()
        return functional.linear(hidden, second.weight, second.bias)

    return run


@pytest.mark.sweep
@pytest.mark.parametrize("run", [lambda block: block, as_functions])
def test_regions_that_run_again_keep_what_they_were_given(
    run: Callable[[nn.Module], Callable[[Tensor], Tensor]],
) -> None:
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    assert kept(Blocks(None, run), x) == 4 * (INPUT + 2 * INPUT)
    assert kept(Blocks(False, run), x) == 4 * INPUT
    assert kept(Blocks(True, run), x) == 4 * INPUT


def test_what_a_gradient_in_the_forward_adds_is_kept() -> None:
    """Of y = x^3, its gradient 3 x^2 is differentiated again."""

    class Slope(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.autograd.grad((x * x * x).sum(), x, create_graph=True)[0]

    class Cube(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x * x

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    assert kept(Slope(), x) > kept(Cube(), x)


class Grows(nn.Module):
    """Runs one more of its layers in each call, up to two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.calls = nn.Sigmoid(), nn.Sigmoid(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.first(x) if self.calls == 1 else self.second(self.first(x))


def test_of_two_passes_the_one_that_keeps_the_most_counts_and_not_their_sum() -> None:
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    [summary] = capture(Grows(), x, [TraceProbe(SAVED, summary=True)], step=hookcli.Step(passes=2))
    assert {row.fqn: row["kept"] for row in summary.rows} == {"first": INPUT, "second": INPUT}
    assert summary.totals["kept_bytes"] == 2 * INPUT
    assert {row.fqn: row["saved_tensor_pack"] for row in summary.rows} == {"first": 2, "second": 1}
    [trace] = capture(Grows(), x, [TraceProbe(SAVED)], step=hookcli.Step(passes=2))
    packed = [(row["pass"], row["kept"]) for row in trace.rows if row["kept"] is not None]
    assert packed == [(0, INPUT), (1, INPUT), (1, INPUT)] and trace.totals["kept_bytes"] == 2 * INPUT


def test_a_tensor_that_is_kept_twice_adds_its_memory_once() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.sigmoid()
            return y * y.view(-1).view_as(y)

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    [report] = capture(Twice(), x, [TraceProbe(SAVED)])
    packed = [row["kept"] for row in report.rows if row["kind"] == "saved_tensor_pack"]
    assert packed == [INPUT, 0, 0]
