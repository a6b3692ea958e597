"""What the checks say of recorded steps together: weights that never move, and those that rest for a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from record.observe.measurements.judged import Program, findings_of, found, net, steps, trained
from support import swept
from torch import nn

# Weights that never move.


def gains_of_one_in_bfloat16(rate: float = 6e-4) -> nn.Module:
    model = net(dtype=torch.bfloat16)
    return trained(model, torch.optim.Adam(model.parameters(), rate), 12)


def everything_at_a_tiny_rate() -> nn.Module:
    model = net(dtype=torch.bfloat16)
    return trained(model, torch.optim.SGD(model.parameters(), 1e-9), 12)


class Forgets(torch.optim.Optimizer):
    """Computes new weights, and leaves the old ones."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            _ = [parameter - group["lr"] * parameter.grad for parameter in group["params"]]


def an_optimizer_that_forgets() -> nn.Module:
    model = net()
    return trained(model, Forgets(model.parameters()), 12)


@pytest.mark.parametrize(
    ("program", "place", "said"),
    [
        (gains_of_one_in_bfloat16, "1", ("weight did not move", "bfloat16 numbers near 1.000 are 0.007812 apart")),
        swept(everything_at_a_tiny_rate, "", ("0.weight, 0.bias, 1.weight and ", "(learning rate 1e-09)")),
        swept(an_optimizer_that_forgets, "", ("3 more parameters did not move", "its optimizer leaves it as it is")),
    ],
)
def test_weights_that_never_move_are_named_with_the_cause(program: Program, place: str, said: tuple[str, ...]) -> None:
    finding = found(program)["HK054"]
    assert (finding.severity, finding.fqn) == ("error", place)
    assert all(words in finding.message for words in said), finding.message


def test_a_weight_whose_gradient_has_vanished_is_no_error() -> None:
    """Adam leaves it as it is, as its eps is far larger; neither the rate nor rounding is why."""

    def program() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
        with torch.no_grad():
            model[1].weight.mul_(1e-20)
        model[1].weight.requires_grad_(False)
        return trained(model, torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3), 12)

    finding = found(program)["HK054"]
    assert (finding.severity, finding.fqn) == ("warning", "0")
    assert ": the largest is " in finding.message
    assert "numbers near" not in finding.message
    assert finding.remedy == "look in which layer the gradient vanishes (HK012)"


@pytest.mark.sweep
def test_a_rate_of_zero_in_every_step_is_said() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return trained(model, optimizer, 12, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0))

    assert found(program)["HK054"].message.startswith("the learning rate was 0 in each of the 12 recorded steps")


def a_rate_of_zero_at_first() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return trained(model, optimizer, 12, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step > 8)))


def a_warm_up_that_goes_on() -> nn.Module:
    model = net(dtype=torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), 1.0)
    return trained(model, optimizer, 12, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 1e5))


def a_group_with_a_rate_of_zero() -> nn.Module:
    model = net()
    groups: list[dict[str, Any]] = [{"params": [*model[0].parameters()], "lr": 0.0}]
    return trained(model, torch.optim.SGD([*groups, {"params": [*model[3].parameters()]}], 0.1), 12)


def a_bias_before_a_norm() -> nn.Module:
    """Its gradient is rounding alone."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    return trained(model, torch.optim.SGD(model.parameters(), 1e-2), 12)


class KeepsMore(torch.optim.Optimizer):
    """Keeps copies of the weights in float32."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                copied = self.state[parameter].setdefault("copy", parameter.detach().float())
                parameter.copy_(copied.sub_(parameter.grad.sign(), alpha=group["lr"]))


def copies_in_the_optimizer() -> nn.Module:
    model = net(dtype=torch.bfloat16)
    return trained(model, KeepsMore(model.parameters()), 12)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "program",
    [
        swept(a_rate_of_zero_at_first),
        a_warm_up_that_goes_on,
        a_bias_before_a_norm,
        copies_in_the_optimizer,
    ],
)
def test_weights_that_rest_for_a_reason_are_not_accused(program: Program) -> None:
    assert "HK054" not in found(program)


@pytest.mark.sweep
def test_a_group_that_a_rate_of_zero_freezes_is_not_accused() -> None:
    assert "HK054" not in found(a_group_with_a_rate_of_zero)


# Updates that the program undoes.


def then(write: Callable[[nn.Module, int], object], model: nn.Module) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, maximize=True)
    for step, _ in enumerate(steps(model, 12)):
        optimizer.step()
        with torch.no_grad():
            write(model, step)
    return model


def copied_back(every: int) -> nn.Module:
    model = net()
    kept = [parameter.detach().clone() for parameter in model.parameters()]

    def write(model: nn.Module, step: int) -> None:
        if step % every == 0:
            for parameter, old in zip(model.parameters(), kept, strict=True):
                parameter.copy_(old)

    return then(write, model)


def clamped(lowest: float) -> nn.Module:
    """Ascends the loss; where the lowest is also the highest, clamping leaves nothing of an update."""
    model = net()
    with torch.no_grad():
        model[3].weight.fill_(0.5)
    return then(lambda model, _: model[3].weight.clamp_(lowest, 0.5), model)


def one_number_at_its_bound() -> nn.Module:
    model = nn.Sequential(net(), nn.PReLU(init=0.25))
    return then(lambda model, _: nn.init.constant_(model[1].weight, 0.25), model)


@pytest.mark.parametrize(
    ("program", "place", "names"),
    [
        (lambda: copied_back(1), "", "0.weight, 0.bias, 1.weight and 3 more"),
        swept(lambda: clamped(0.5), "3", "weight,"),
    ],
    ids=["copied back", "clamped"],
)
def test_updates_that_the_program_undoes_are_said(program: Program, place: str, names: str) -> None:
    finding = findings_of(program, "HK054", every=1)[place]
    assert finding.severity == "warning"
    assert finding.message.startswith(f"the optimizer moved {names}"), finding.message
    assert "after each of 11 recorded steps" in finding.message


@pytest.mark.sweep
@pytest.mark.parametrize(
    "program",
    [lambda: copied_back(3), swept(lambda: clamped(-0.5)), one_number_at_its_bound],
    ids=["back at times", "moves within its bounds", "one number"],
)
def test_values_that_a_program_bounds_or_resets_at_times_are_not_accused(program: Program) -> None:
    assert "HK054" not in found(program, every=1)
