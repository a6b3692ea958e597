"""HK003 on values that a model's output hides: `where` and `nan_to_num` drop NaN, their gradient does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import untouched
from torch import Tensor, nn

from hookcli import check
from hookcli.table import Finding


class Net(nn.Module):
    """Does something between two layers, in eval mode alone or in both."""

    def __init__(self, function: Callable[[Tensor], Tensor], both: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function, self.both = nn.Linear(6, 8), nn.Linear(8, 3), function, both

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(self.function(h) if self.both or not self.training else h)


class Logarithm(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.log()


SPOILS = {
    "log": lambda h: torch.where(h > 0, (h * (h > 0)).log(), 0.0),
    "sqrt": lambda h: torch.where(h > 0.1, h.sub(0.1).sqrt(), h),
    "truediv": lambda h: ((h - h) / (h - h)).nan_to_num(0.0) + h,
    "acos": lambda h: torch.where((3 * h).abs() < 1, (3 * h).acos(), 0.0),
}
HARMLESS: dict[str, Callable[[Tensor], Tensor]] = {
    "a safe argument": lambda h: torch.where(h > 0, torch.where(h > 0, h, 1.0).log(), 0.0),
    "clamped before": lambda h: h.clamp(min=1e-3).log(),
    "a mask": lambda h: h.masked_fill(h < h.amax(-1, keepdim=True), -torch.inf).softmax(-1),
    "rows that see no key": lambda h: h + h.masked_fill(h < 9, -torch.inf).softmax(-1).nan_to_num(0.0),
    "nothing": torch.tanh,
}


def of_eval(model: nn.Module) -> list[Finding]:
    x = torch.randn(8, 6)
    with untouched(model):
        report = check(model, x)
    return [one for one in report.findings if one.check == "HK003"]


@pytest.mark.parametrize("case", SPOILS)
def test_values_that_the_output_hides_and_a_gradient_shows_are_a_warning(case: str) -> None:
    model = Net(SPOILS[case])
    with torch.no_grad():
        assert model.eval()(torch.randn(8, 6)).isfinite().all()
    model(torch.randn(8, 6)).sum().backward()
    assert not all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    [finding] = of_eval(model.train())
    assert finding.severity == "warning" and finding.fqn.startswith(":"), finding
    assert "they are kept from the model's output, but not from the gradient of first." in finding.message
    assert finding.file == "tests/checks/test_hidden_values.py" and finding.line


@pytest.mark.parametrize("case", HARMLESS)
def test_what_neither_spoils_an_output_nor_a_gradient_passes(case: str) -> None:
    assert of_eval(Net(HARMLESS[case])) == []


def test_nan_that_a_module_returns_and_no_gradient_shows_is_a_remark() -> None:
    logarithm = Logarithm()
    model = Net(lambda h: h + logarithm(h.detach()).nan_to_num(0.0))
    model.logarithm = logarithm
    [finding] = of_eval(model)
    assert finding.severity == "info" and finding.message.endswith("they are kept from the model's output")


def test_what_training_shows_already_is_not_said_twice() -> None:
    report = check(Net(SPOILS["log"], both=True), torch.randn(8, 6))
    assert [one.check for one in report.findings if one.severity != "info"] == ["HK004"]
