"""The first non-finite value of a model that computes between its modules, or its own loss."""

from __future__ import annotations

import re

import torch
from observing import observed
from record.observe.figures import net
from torch import Tensor, nn

from hookcli.record.file.views.summary import non_finite_line


class Logs(nn.Module):
    """Takes logarithms between its modules; `where`: of what it was given, or for its own loss."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.first, self.rest = where, nn.Linear(4, 4), nn.Sequential(nn.Identity(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.first(x)
        y = self.rest((x - x).log() if self.where == "between" else x)
        return {"y": y, "loss": (y - y).log().sum() if self.where == "loss" else y.sum()}


def test_a_value_computed_between_modules_is_said_to_be_so() -> None:
    """It is the input of the outermost module that received it, and of no module's making."""
    (bad,) = observed(lambda: Logs("between")(torch.ones(2, 4)), first_bad="report").non_finites
    assert (bad.fqn, bad.what, bad.nan, bad.inf) == ("rest", "input", 0, 8)
    assert bad.cause == "computed between modules, in Logs.forward"


def test_a_loss_of_the_models_own_has_its_key_and_one_of_the_programs_its_output() -> None:
    (bad,) = observed(lambda: Logs("loss")(torch.ones(2, 4)), first_bad="report").non_finites
    assert '1 Inf in the model\'s output["loss"] (Logs, step 0)' in non_finite_line(bad)
    (bad,) = observed(
        lambda: (net()(torch.ones(2, 4)).sum() * torch.tensor(-1.0).log()).backward(), first_bad="report"
    ).non_finites
    assert bad.what == "loss" and re.fullmatch(
        r"the model's output was finite, up to [\d.]+: it begins in the loss function", bad.cause
    )


class Repeated(nn.Module):
    """Calls one layer twice, with a function between the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)
        with torch.no_grad():
            self.cell.weight[0, 0] = torch.nan

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cell(self.cell(x).tanh())
        return y


def test_a_layers_own_value_that_comes_back_to_it_is_no_input() -> None:
    (bad,) = observed(lambda: Repeated()(torch.ones(2, 4)), first_bad="report").non_finites
    assert (bad.fqn, bad.what, bad.cause) == ("cell", "output", "its weight is not finite")
