"""What the checks say of infinities in recorded steps: masks that a program writes, and what is computed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from observing import observed
from record.observe.measurements.judged import (
    Program,
    Scores,
    actions_that_are_not_allowed,
    found,
    hidden,
    scored,
    trained,
)
from support import swept
from torch import Tensor, nn
from torch.nn import functional

from hookcli.table.names import is_operator


class Twice(nn.Module):
    """Calls its scores twice, with numbers 0 and 1."""

    def __init__(self, function: Callable[[Tensor, int, bool], Tensor]) -> None:
        super().__init__()
        self.scores = Scores(function)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scores(x, 0).softmax(-1) + self.scores(x, 1).exp()
        return y


ADDED = torch.full((5,), -math.inf).where(torch.arange(5) == 2, torch.zeros(5))


OTHER_MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda y: y + ADDED,
    "added as a logarithm": lambda y: y + (torch.arange(5) != 2).float().log(),
    "scaled before": lambda y: hidden(y / 0.7),
    "scaled after": lambda y: hidden(y) / 0.7,
    "padded": lambda y: functional.pad(y[..., :4], (0, 1), value=-math.inf),
    "concatenated": lambda y: torch.cat((y[..., :4], torch.full((*y.shape[:-1], 1), -math.inf)), -1),
    "a module of its own": lambda y: Mask()(y),
}


class Mask(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y + ADDED


def a_frozen_logarithm() -> nn.Module:
    part = Scores(lambda y, *_: y.relu().log()).requires_grad_(False)
    return scored(nn.Sequential(part, nn.Softmax(-1), nn.Linear(5, 2)))


BROKEN_SCORES: dict[str, Program] = {
    "a number beside a logarithm": lambda: scored(Scores(lambda y, *_: y.relu().log() + 1e-8)),
    "a logarithm in a branch": lambda: scored(Scores(lambda y, *_: torch.where(y > 1, 0.0, y.relu().log()))),
    "a logarithm in another call": lambda: scored(Twice(lambda y, n, _: y.relu().log() if n else hidden(y))),
    "added to an overflow": lambda: scored(Scores(lambda y, *_: y * 1e38 * 1e10 + ADDED)),
    "a logarithm of a frozen layer": a_frozen_logarithm,
    "infinities in one step alone": lambda: scored(OnceBad(), 2),
    "scaled to an overflow": lambda: scored(Scores(lambda y, *_: hidden(y * -1e38 * 1e10))),
}


class OnceBad(nn.Module):
    """Returns infinities that it computes, in its first step alone, and a loss that is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.part = 0, Scores(lambda y, *_: y.relu().log() if self.calls == 1 else y)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.part(x).exp()


@pytest.mark.parametrize(
    ("name", "first_bad"),
    [
        (name, first_bad) if number % 4 == 2 * bool(first_bad) else swept(name, first_bad)
        for number, name in enumerate(OTHER_MASKS)
        for first_bad in (None, "report")
    ],
)
def test_masks_that_no_node_shows_are_looked_at_in_the_next_step(name: str, first_bad: str | None) -> None:
    def program() -> nn.Module:
        return scored(nn.Sequential(Scores(lambda y, *_: OTHER_MASKS[name](y))))

    seen = observed(program, check=True, first_bad=first_bad)
    last = [step for step in seen.recorded if step.phase == "train"][-1]
    assert not seen.non_finites
    assert not [one for report in last.reports for one in report.findings]
    assert not any(is_operator(row.fqn) for report in last.reports for row in report.rows)


ALIKE = ("a number beside a logarithm", "a logarithm in a branch", "scaled to an overflow")
BROKEN = [swept(name) if name in ALIKE else name for name in BROKEN_SCORES]


@pytest.mark.parametrize("name", BROKEN)
def test_a_search_finds_the_infinities_of_computations_at_the_module_that_makes_them(name: str) -> None:
    (value,) = observed(BROKEN_SCORES[name], first_bad="report").non_finites
    assert value.step == 0 and value.what.startswith("output")


@pytest.mark.parametrize("name", BROKEN)
def test_infinities_of_computations_are_no_masks(name: str) -> None:
    assert "HK003" in found(BROKEN_SCORES[name])


@pytest.mark.sweep
def test_other_infinities_in_eval_mode_are_no_masks_though_training_has_some() -> None:
    def program() -> nn.Module:
        model = scored(Scores(lambda y, _, training: hidden(y) if training else y / 0.0)).eval()
        with torch.no_grad():
            model(torch.randn(4, 8))
        return model

    seen = observed(program, check=True)
    without = next(step for step in seen.recorded if step.phase != "train")
    assert "HK003" in {one.check for report in without.reports for one in report.findings}


@pytest.mark.sweep
@pytest.mark.parametrize("first_bad", [swept(None), "report"])
def test_scores_of_a_forward_without_gradients_are_those_of_training(first_bad: str | None) -> None:
    seen = observed(actions_that_are_not_allowed, check=True, first_bad=first_bad)
    assert not seen.non_finites and {step.phase for step in seen.recorded} > {"train"}
    assert not [one for step in seen.recorded for report in step.reports for one in report.findings]


@pytest.mark.parametrize("trains", [False, True])
def test_scores_that_no_training_tells_to_be_meant_are_judged(trains: bool) -> None:
    def program() -> nn.Module:
        model, x = nn.Sequential(nn.Linear(8, 5), Logarithm()), torch.ones(4, 8)
        nn.init.constant_(model[0].weight, -1.0)
        if trains:
            trained(model, torch.optim.SGD(model.parameters(), 1e-3), 1)
        with torch.no_grad():
            model(x)
        return model

    seen = observed(program, check=True)
    without = next(step for step in seen.recorded if step.phase != "train")
    assert "HK003" in {one.check for report in without.reports for one in report.findings}


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().log()
