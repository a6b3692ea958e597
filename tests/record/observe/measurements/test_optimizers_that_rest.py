"""What the checks say of recorded steps together: parameters that no optimizer has, and optimizers that never step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed, skipped
from record.observe.measurements.judged import Program, found, net, steps, trained
from support import swept
from torch import nn

from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps
from hookcli.table import Finding


def every_finding(step: RecordedStep) -> list[Finding]:
    return [finding for report in step.reports for finding in report.findings]


# Parameters that no optimizer has.


def a_replaced_layer() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[3] = nn.Linear(16, 3)
    return trained(model, optimizer)


def a_replaced_weight() -> nn.Module:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model[3].weight = nn.Parameter(torch.randn(3, 16))
    return trained(model, optimizer)


def a_copied_model() -> nn.Module:
    model = net()
    return trained(copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.1))


def a_body_alone() -> nn.Module:
    """What is left out has a bias of a single value."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), 0.01)
    for _ in range(10):
        model.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
    return model


def part_of_a_model() -> nn.Module:
    model = net()
    return trained(model, torch.optim.SGD(model[3].parameters(), 0.1))


@pytest.mark.parametrize(
    ("program", "severity", "place", "names"),
    [
        swept(a_replaced_layer, "error", "3", "weight, bias"),
        swept(a_replaced_weight, "error", "3", "weight"),
        swept(a_copied_model, "error", "", "0.weight, 0.bias, 1.weight and 3 more parameters"),
        (a_body_alone, "warning", "1", "weight, bias"),
        swept(part_of_a_model, "warning", "", "0.weight, 0.bias, 1.weight and 1 more parameter"),
    ],
)
def test_parameters_that_no_optimizer_has_are_named(program: Program, severity: str, place: str, names: str) -> None:
    """Their gradients came: nothing is said of a missing one."""
    findings = found(program)
    assert findings.keys() == {"HK053"}
    assert (findings["HK053"].severity, findings["HK053"].fqn) == (severity, place)
    assert findings["HK053"].message.startswith(
        f"no optimizer has {names}: gradients arrive, but nothing updates the values"
    )
    assert ("without gradients, of modules that do not run" in findings["HK053"].message) == (severity == "error")


def test_parameters_of_no_model_are_not_looked_for_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    look = OptimizerSteps.look_for_stale
    monkeypatch.setattr(OptimizerSteps, "look_for_stale", lambda *args: looked.append(1) or look(*args))

    def program() -> nn.Module:
        model = net()
        return trained(copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.1), number=60)

    assert found(program, every=20)["HK053"].severity == "error"
    assert 3 <= len(looked) < 30


@pytest.mark.sweep
def test_the_reason_why_a_gradient_was_not_taken_is_the_true_one() -> None:
    seen = observed(a_replaced_layer)
    assert skipped(seen.recorded[0], "grads")["3.weight"] == "got a gradient, but no optimizer has it"


def a_critic_that_begins_later(begins_at: int | None = None, *, frozen: bool = False) -> list[nn.Module]:
    maker, critic = nn.Linear(4, 8), nn.Linear(8, 1).requires_grad_(not frozen)
    first = torch.optim.Adam(maker.parameters(), 1e-3)
    critic.optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    for number in range(8):
        first.zero_grad()
        (-critic(maker(torch.randn(8, 4))).mean()).backward()
        first.step()
        if begins_at is not None and number >= begins_at:
            critic.optimizer.step()
    return [maker, critic]


def a_generator_whose_optimizer_never_steps() -> list[nn.Module]:
    """The critic's optimizer steps twice instead."""
    maker, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    maker.optimizer = torch.optim.Adam(maker.parameters(), 1e-3)
    second = torch.optim.Adam(critic.parameters(), 1e-3)
    for _ in range(8):
        fake = maker(torch.randn(8, 4))
        second.zero_grad()
        (critic(fake.detach()).mean() - critic(torch.randn(8, 8)).mean()).backward()
        second.step()
        maker.optimizer.zero_grad()
        (-critic(fake).mean()).backward()
        second.step()
    return [maker, critic]


@pytest.mark.parametrize(
    ("program", "model"),
    [swept(a_critic_that_begins_later, "Linear #2"), (a_generator_whose_optimizer_never_steps, "Linear")],
)
def test_an_optimizer_that_never_steps_beside_one_of_another_model_is_a_warning(program: Program, model: str) -> None:
    findings = {(step.model, one) for step in observed(program, check=True).recorded for one in every_finding(step)}
    ((name, finding),) = findings
    words = "Adam made no step after any of 8 backward passes"
    assert (name, finding.check, finding.severity, finding.message) == (model, "HK054", "warning", words)


@pytest.mark.sweep
@pytest.mark.parametrize("settings", [{"begins_at": 6}, {"frozen": True}])
def test_an_optimizer_that_begins_or_whose_parameters_are_frozen_is_not_accused(settings: dict[str, Any]) -> None:
    seen = observed(lambda: a_critic_that_begins_later(**settings), check=True)
    assert not [one for step in seen.recorded for one in every_finding(step)]


@pytest.mark.parametrize("begins_at", [None, 6])
def test_one_of_two_optimizers_that_never_steps_is_said(begins_at: int | None) -> None:
    def program() -> nn.Module:
        model = net()
        idle, used = torch.optim.Adam(model[0].parameters()), torch.optim.SGD([*model[1:].parameters()], 0.1)
        model.idle = idle
        for number, _ in enumerate(steps(model, 12)):
            used.step()
            if begins_at is not None and number >= begins_at:
                idle.step()
        return model

    findings = found(program)
    assert bool(findings) == (begins_at is None)
    for finding in findings.values():
        assert (finding.check, finding.severity, finding.fqn) == ("HK054", "warning", "0")
        assert finding.message.startswith("Adam, which has weight, bias, made no step in any of ")


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [torch.optim.SGD, swept(torch.optim.Adam)])
def test_gradients_that_are_cleared_before_every_step_are_said(kind: Callable[..., torch.optim.Optimizer]) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = kind(model.parameters(), 0.1)
        for _ in steps(model, 12):
            optimizer.zero_grad()
            optimizer.step()
        return model

    finding = found(program)["HK054"]
    words = "every gradient was cleared before the optimizer's step, in each of the 12 recorded steps"
    assert finding.severity == "error" and finding.message.startswith(words)
    assert finding.remedy and "before backward()" in finding.remedy


@pytest.mark.parametrize("kind", [torch.optim.SGD, swept(torch.optim.AdamW)])
@pytest.mark.parametrize("clears", [False, True])
def test_an_optimizer_that_never_steps_is_said(kind: Callable[..., torch.optim.Optimizer], clears: bool) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = kind(model.parameters(), 0.1)
        for _ in range(12):
            if clears:
                model.optimizer = optimizer  # else it ends with the function, as in a script's main()
                optimizer.zero_grad()
            model(torch.randn(32, 8)).square().mean().backward()
        return model

    finding = found(program)["HK054"]
    words = f"{kind.__name__} made no step after any of 12 backward passes: nothing was trained"
    assert (finding.severity, finding.message) == ("error", words)
    assert "step()" in str(finding.remedy)


def scaled(fused: bool, number: int, bad: range) -> nn.Module:
    """A fused optimizer skips steps by itself."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", 2.0**8)
    for step in range(number):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(32, 8)).square().mean()).backward()
        if step in bad:
            model[0].weight.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
    return model


SKIPS = [
    (range(12), "error", "the GradScaler skipped each of the 12 recorded steps: nothing was trained"),
    (range(2, 12), "warning", "the GradScaler skipped each of the last 10 recorded steps"),
    (range(6), "", ""),
    (range(11), "", ""),
    (range(4, 12), "", ""),
]


@pytest.mark.parametrize(
    ("fused", "bad", "severity", "message"),
    [
        (fused, *skips) if number % 2 == fused and number < 3 else swept(fused, *skips)
        for number, skips in enumerate(SKIPS)
        for fused in (False, True)
    ],
)
def test_a_grad_scaler_that_skips_every_step_is_said(fused: bool, bad: range, severity: str, message: str) -> None:
    """Several overflows in a row are how it finds its scale."""
    finding = found(lambda: scaled(fused, 12, bad)).get("HK054")
    assert (finding.severity, finding.message) == (severity, message) if finding else not severity
