"""--first-bad: infinities that may be a mask's, in steps whose operators nobody sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn
from torch._dynamo.utils import counters

from hookcli.record.file.views.run_lines import non_finite_line

pytestmark = pytest.mark.xdist_group("torch.compile")


class Scores(nn.Module):
    """Attention scores in which the future holds `fill`."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.query, self.key, self.fill = nn.Linear(8, 8), nn.Linear(8, 8), fill

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT
        return torch.where(torch.ones(5, 5).triu(1).bool(), self.fill, scores * 1.01)


class Attention(nn.Module):
    """Returns its scores, or takes their softmax; adds NaN to that in one call."""

    def __init__(self, fill: float = -math.inf, returns_scores: bool = False, nan_in: int = -1) -> None:
        super().__init__()
        self.scores: nn.Module = Scores(fill)
        self.value, self.returns_scores, self.nan_in, self.calls = nn.Linear(8, 8), returns_scores, nan_in, 0

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(x)
        if self.returns_scores:
            return scores
        added = math.nan if self.calls == self.nan_in else 0.0
        self.calls += 1
        y: Tensor = scores.softmax(-1) @ self.value(x) + torch.tensor(added)
        return y


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    counters.clear()


def lines(make: Callable[[], Attention], steps: int, *, compiled: bool, trains: bool = True) -> list[str]:
    def program() -> nn.Module:
        model = make()
        if compiled:
            model.scores = torch.compile(model.scores, backend="aot_eager")  # type: ignore[assignment]
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(steps):
            with torch.set_grad_enabled(trains):
                y = model(torch.randn(4, 5, 8))
            if trains:
                optimizer.zero_grad()
                (y.softmax(-1) if model.returns_scores else y).square().mean().backward()
                optimizer.step()
        return model

    return [non_finite_line(value) for value in observed(program, every=100, first_bad="report").non_finites]


@pytest.mark.parametrize(
    ("returns_scores", "compiled", "steps"),
    [
        *((False, False, 1), (True, False, 1)),
        *(swept(*case) for case in ((False, True, 1), (False, True, 3), (True, True, 1), (True, True, 3))),
    ],
)
def test_a_mask_that_a_softmax_takes_up_is_not_named(compiled: bool, steps: int, returns_scores: bool) -> None:
    assert lines(lambda: Attention(returns_scores=returns_scores), steps, compiled=compiled) == []


@pytest.mark.parametrize("compiled", [False, True])
def test_nan_of_the_last_step_is_named_not_the_mask_of_an_earlier_one(compiled: bool) -> None:
    (line,) = lines(lambda: Attention(nan_in=2), 3, compiled=compiled)
    assert line.startswith("first non-finite value: 160 NaN in the model's output (Attention, step 2)")


@pytest.mark.sweep
def test_in_one_step_both_are_named() -> None:
    """Nothing shows whether the infinities led to the NaN."""
    (line,) = lines(lambda: Attention(nan_in=0), 1, compiled=True)
    assert "40 Inf in the output of scores (Attention, step 0)" in line
    assert line.endswith("; then 160 NaN in the model's output")


@pytest.mark.parametrize(("compiled", "trains"), [(False, False), (False, True), swept(True, False), (True, True)])
def test_infinities_above_all_numbers_are_no_mask(compiled: bool, trains: bool) -> None:
    (line,) = lines(lambda: Attention(math.inf, returns_scores=True), 1, compiled=compiled, trains=trains)
    assert line.startswith("first non-finite value: 40 Inf in the output of scores (Attention, step 0")


@pytest.mark.parametrize("name", ["log", "reciprocal"])
def test_a_model_that_returns_nothing_else_is_named(name: str) -> None:
    class Empty(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = getattr(x - x, name)()
            return y.sum() - 1

    (bad,) = observed(lambda: Empty(2, 2)(torch.ones(2, 2)), first_bad="report").non_finites
    assert (bad.fqn, bad.what, bad.inf) == ("", "output", 1)
