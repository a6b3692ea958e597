"""Two runs that part in one thing, at a known step, and runs that go on where another one was."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn

from hookcli.capabilities.fingerprints.lines import Fingerprint
from hookcli.capabilities.fingerprints.parting import TwoRuns

STEPS, AT = 8, 4
SAME = "are still the same, bit for bit"
Change = Callable[["Training"], object]


class Training:
    """A model with Dropout and BatchNorm, Adam, and batches of a generator of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.generator = torch.Generator().manual_seed(1)
        self.scale = 1.0

    def batch(self) -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 6, generator=self.generator)
        return x, x[:, :3].argmax(1)

    def step(self) -> None:
        x, y = self.batch()
        self.optimizer.zero_grad()
        (self.scale * nn.functional.cross_entropy(self.model(x), y)).backward()
        self.optimizer.step()

    def run(self, change: Change | None = None, steps: int = STEPS) -> nn.Module:
        for step in range(steps):
            if step == AT and change:
                change(self)
            self.step()
        return self.model


def prints(program: Callable[[], Any], **plan: Any) -> dict[tuple[int, int], Fingerprint]:
    found = [one for one in observed(program, **plan).of_parts if isinstance(one, Fingerprint)]
    return {(one.step, one.rank): one for one in found}


@pytest.fixture(scope="module")
def usual() -> dict[tuple[int, int], Fingerprint]:
    return prints(lambda: Training().run(), every=1)


def weight(training: Training) -> None:
    with torch.no_grad():
        training.model[4].weight[1, 2] += 1e-7


def buffer(training: Training) -> None:
    training.model[1].running_mean[0] += 1.0  # type: ignore[union-attr,operator,index]


def state(training: Training) -> None:
    training.optimizer.state[training.model[0].weight]["exp_avg"][0, 0] += 1e-9


def rate(training: Training) -> None:
    training.optimizer.param_groups[0]["lr"] = 0.02


def batch(training: Training) -> None:
    x, y = training.batch()
    training.batch = lambda: (x.flip(0), y.flip(0))  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (weight, "in the weights (4.weight alone)"),
        swept(buffer, "in the weights (1.running_mean alone)"),
        swept(state, "in the optimizer's state"),
        swept(rate, "in the optimizer's settings"),
        (lambda _: torch.rand(1), "in PyTorch's random numbers"),
        (batch, "in the batch"),
    ],
)
def test_what_differs_first_is_named(change: Change, words: str, usual: Any) -> None:
    other = prints(lambda: Training().run(change), every=1)
    text = TwoRuns(usual, other).parting()
    assert text.startswith(f"the runs part at step {AT}, {words}; ") and SAME in text
    assert TwoRuns(other, usual).parting().startswith(f"the runs part at step {AT}, {words}; ")


def test_what_a_step_did_differently_shows_in_the_weights_after_it(usual: Any) -> None:
    other = prints(lambda: Training().run(lambda one: setattr(one, "scale", 1.5)), every=1)
    text = TwoRuns(usual, other).parting()
    assert text.startswith(f"the runs part at step {AT + 1}, in the weights, the optimizer's state (0.weight and ")
    assert f"step {AT} began alike: look at its targets, its code" in text


def test_the_same_program_is_the_same(usual: Any) -> None:
    assert TwoRuns(usual, prints(lambda: Training().run(), every=1)).parting() == (
        f"bit for bit, all {STEPS} steps that both have recorded began alike"
    )
    assert [one.step for one in usual.values() if one.after] == [STEPS]


def test_generators_from_which_nothing_is_drawn_do_not_count() -> None:
    """Python's and numpy's are seeded by the clock in most programs, and PyTorch's draws nothing without Dropout."""

    def run(seed: int, draws: bool = False) -> nn.Module:
        training = Training()
        training.model[3].p = 0.0  # type: ignore[assignment]
        torch.manual_seed(seed)
        random.seed(seed)
        return training.run((lambda _: random.random()) if draws else None)

    one = prints(lambda: run(1), every=1)
    assert "began alike" in TwoRuns(one, prints(lambda: run(2), every=1)).parting()
    drawn = TwoRuns(one, prints(lambda: run(2, draws=True), every=1)).parting()
    assert drawn.startswith("the runs part at step 0, in Python's random numbers; ")


def test_steps_that_were_not_recorded_are_not_told_apart(usual: Any) -> None:
    other = prints(lambda: Training().run(rate), every=3)
    text = TwoRuns(usual, other).parting()
    assert text.startswith("the runs part at step 6, in the weights, the optimizer's state, the optimizer's settings ")


@pytest.mark.parametrize(
    ("restored", "words"),
    [
        (("weights", "state", "data"), "restored, too: the optimizer's state"),
        swept(("weights", "data"), "not restored: the optimizer's state"),
        (("weights", "state"), "restored, too: the optimizer's state; its first batch is that of A's step 0"),
    ],
)
def test_a_run_that_goes_on_is_told_what_it_lacks(restored: tuple[str, ...], words: str, usual: Any) -> None:
    first = Training()
    first.run()

    def resumed() -> nn.Module:
        training = Training()
        training.model.load_state_dict(copy.deepcopy(first.model.state_dict()))
        if "state" in restored:
            training.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
        if "data" in restored:
            training.generator.set_state(first.generator.get_state())
        return training.run(steps=3)

    second = prints(resumed, every=1)
    said = f"B begins with the weights that A had after step {STEPS - 1}; {words}"
    assert TwoRuns(usual, second).goes_on("AB") == said
    assert TwoRuns(second, usual).goes_on("BA") == ""


def test_a_run_that_goes_on_from_the_middle_is_compared_with_the_step_there(usual: Any) -> None:
    """Then random numbers and settings count as well: both are as a step begins."""
    later = {(step - AT, rank): replace(one, step=step - AT) for (step, rank), one in usual.items() if step >= AT}
    words = "PyTorch's random numbers"
    said = TwoRuns(usual, later).goes_on("AB")
    assert said.startswith(f"B begins with the weights that A had at step {AT}; restored, too: the optimizer's state, ")
    assert words in said and said.endswith(f"the batch; its first batch is that of A's step {AT}")
    drawn = {**later, (0, 0): replace(later[0, 0], random="0" * 16)}
    assert f"; not restored: {words}; " in TwoRuns(usual, drawn).goes_on("AB")


def test_ranks_are_compared_each_with_its_own(usual: Any) -> None:
    ranks = {(step, rank): replace(one, rank=rank) for (step, _), one in usual.items() for rank in (0, 1)}
    other = {**ranks, (AT, 1): replace(ranks[AT, 1], received="0" * 16)}
    assert TwoRuns(ranks, other).parting().startswith(f"the runs part at step {AT} on rank 1, in the batch; ")


def test_records_without_fingerprints_say_nothing(usual: Any) -> None:
    for both in (TwoRuns({}, usual), TwoRuns(usual, {}), TwoRuns({}, {})):
        assert both.parting() == both.goes_on("AB") == ""
