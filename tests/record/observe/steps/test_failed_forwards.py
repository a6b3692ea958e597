"""Forwards that fail inside a step, and those that return nothing while the program handles an exception."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from observing import observed, rows
from torch import Tensor, nn


class Sometimes(nn.Sequential):
    """A linear layer, which fails in some calls of the model after it has run."""

    def __init__(self, error: type[BaseException], *failing: int) -> None:
        super().__init__(nn.Linear(2, 1))
        self.calls, self.failing, self.error = 0, failing, error

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.calls += 1
        if self.calls in self.failing:
            raise self.error("not now")
        return y


class Twice(torch.optim.SGD):
    """Evaluates its closure twice in a step."""

    def step(self, closure: Any = None) -> Any:
        closure()
        return super().step(closure)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("evaluation", [1, 2])
def test_a_closure_that_fails_inside_a_forward(evaluation: int, error: type[BaseException]) -> None:
    """It is a failed forward, not a failed step, though the exception ends both. No hook is told of an interrupt."""

    def program() -> nn.Module:
        model = Sometimes(error, evaluation)
        optimizer = Twice(model.parameters(), lr=0.1)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2)).pow(2).sum()
            loss.backward()
            return loss

        for _ in range(3):
            with suppress(error):
                optimizer.step(closure)
        return model

    seen = observed(program)
    assert seen.ran["Sometimes"].steps == 2 and seen.steps() == [0, 0, 1]
    failed, *others = seen.recorded
    assert failed.notes == ["a forward failed: the step is recorded up to there"] and not failed.complete
    assert failed.forwards == evaluation and len(failed.losses) == evaluation - 1
    assert set(rows(failed, "activations")) == ({"0"} if evaluation == 1 else {"", "0"})
    for window in others:
        assert window.complete and not window.notes and window.forwards == 2
        assert set(rows(window, "updates")) == {"0.weight", "0.bias"}


def test_a_closure_that_fails_after_its_forward_is_a_failed_step() -> None:
    def program() -> nn.Module:
        model, calls = nn.Linear(2, 1), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> Tensor:
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("not now")
            return loss

        for _ in range(2):
            with suppress(ValueError):
                optimizer.step(closure)
        return model

    first, second = observed(program).recorded
    assert first.notes == ["the optimizer's step failed: the step is recorded up to there"] and len(first.losses) == 1
    assert second.complete and not second.notes and (first.step, second.step) == (0, 0)


class Stores(nn.Linear):
    """Returns nothing."""

    def forward(self, x: Tensor) -> None:
        self.stored = super().forward(x)


def test_a_model_that_returns_none_while_an_exception_is_handled_has_not_failed() -> None:
    def program() -> nn.Module:
        model = Stores(2, 1)
        for _ in range(2):
            try:
                raise KeyError("lost")
            except KeyError:
                model(torch.ones(1, 2))
        model(torch.ones(1, 2))
        return model

    seen = observed(program)
    assert [(w.complete, w.notes) for w in seen.recorded] == [(True, [])] * 3 and seen.steps() == [0, 1, 2]
