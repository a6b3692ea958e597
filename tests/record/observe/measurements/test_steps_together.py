"""What the checks say of recorded steps together: parts that never run, gradients on their way, where faults begin."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from observing import observed, report
from record.observe.measurements.judged import Program, found, net, trained
from records import HEADER, end, save
from support import swept
from torch import Tensor, nn

from hookcli.record.file.reading import read_record
from hookcli.record.file.views.verdict import judged

# Modules that no recorded step runs.


class Experts(nn.Module):
    """Runs those of its three branches that `chosen` gives for the number of the call."""

    def __init__(self, chosen: Callable[[int], list[int]]) -> None:
        super().__init__()
        self.experts, self.chosen, self.calls = nn.ModuleList(nn.Linear(8, 3) for _ in range(3)), chosen, 0

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.chosen(self.calls)
        self.calls += 1
        return torch.stack([self.experts[number](x) for number in chosen]).mean(0)


def routed(chosen: Callable[[int], list[int]]) -> nn.Module:
    model = Experts(chosen)
    return trained(model, torch.optim.SGD(model.parameters(), 0.1), 12)


@pytest.mark.parametrize(
    ("chosen", "plan", "severity", "called", "steps"),
    [
        (lambda n: [n % 2 + 1], {"every": 2}, "warning", "not called in any of 6 recorded steps", " in the 6 recorded"),
        swept(lambda n: [n % 2], {}, "warning", "never called", " in the 12 recorded steps"),
        swept(lambda n: [0, 1], {}, "error", "never called", ""),
        swept(lambda n: [0, 1], {"start": 4}, "error", "not called in any of 8 recorded steps", ""),
    ],
)
def test_experts_that_no_recorded_step_ran_are_no_error(
    chosen: Callable[[int], list[int]], plan: dict[str, Any], severity: str, called: str, steps: str
) -> None:
    """A layer that a loop leaves out is: those beside it run in each step."""
    findings = found(lambda: routed(chosen), **plan)
    assert findings.keys() == {"HK006", "HK008"}
    assert findings["HK006"].message == f"Linear with 27 parameters was {called}"
    assert findings["HK008"].severity == severity
    assert findings["HK008"].message.startswith("no gradient reached weight, bias" + steps)


@pytest.mark.parametrize("every", [1, swept(2)])
def test_a_head_that_no_recorded_step_trained_is_not_said_if_others_have(every: int) -> None:
    """Two heads run in each step, and are trained in turns: the values of both move."""

    def program() -> nn.Module:
        model = nn.ModuleList(nn.Linear(8, 3) for _ in range(2))
        both = Heads(model)
        optimizer = torch.optim.SGD(both.parameters(), 0.1)
        for number in range(12):
            optimizer.zero_grad()
            both(torch.randn(32, 8))[number % 2].square().mean().backward()
            optimizer.step()
        return both

    assert "HK008" not in found(program, every=every)


class Heads(nn.Module):
    def __init__(self, heads: nn.ModuleList) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> list[Tensor]:
        return [head(x) for head in self.heads]


# Gradients that are zero.


@pytest.mark.parametrize("zero_in", [range(6), swept(range(3, 6))])
def test_a_run_in_which_every_gradient_is_zero_is_an_error(zero_in: range) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            optimizer.zero_grad()
            (model(torch.randn(32, 8)).square().mean() * float(step not in zero_in)).backward()
            optimizer.step()
        return model

    finding = found(program)["HK009"]
    assert finding.severity == ("error" if zero_in == range(6) else "info")
    assert ": the loss is 0" in finding.message
    assert ("every gradient was zero in all 6 recorded steps" in finding.message) == (zero_in == range(6))


@pytest.mark.sweep
def test_a_margin_that_is_reached_is_a_note() -> None:
    def program() -> nn.Module:
        torch.manual_seed(0)
        model, x = net(), torch.randn(32, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(24):
            loss = (1 - model(x).sum(1) * 10).clamp(min=0).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() == 0, "the case is wrong"
        return model

    finding = found(program)["HK009"]
    assert finding.severity == "info" and ": the loss is 0" in finding.message


def set_to_zero(gradients: list[Tensor]) -> None:
    for gradient in gradients:
        gradient.zero_()


def clip_by_an_infinite_norm(gradients: list[Tensor]) -> None:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    nn.utils.clip_grad_norm_(parameters, 1.0)


def replace_nan(gradients: list[Tensor]) -> None:
    for gradient in gradients:
        gradient.nan_to_num_(0.0)


@pytest.mark.parametrize(
    ("change", "factor", "words", "advice"),
    [
        (set_to_zero, 1.0, "every gradient was set to 0 before the optimizer's step", "before backward()"),
        (clip_by_an_infinite_norm, 1e22, "zeroed since then, as clipping by an infinite norm does", "clip_grad_norm_"),
        (replace_nan, math.nan, "backward left NaN or infinities, and the program set all gradients to", "--first-bad"),
    ],
)
def test_what_made_all_gradients_zero_is_told_by_what_backward_left(
    change: Callable[[list[Tensor]], None], factor: float, words: str, advice: str
) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(6):
            optimizer.zero_grad()
            (model(torch.randn(32, 8)).square().mean() * factor).backward()
            change([p.grad for p in model.parameters() if p.grad is not None])
            optimizer.step()
        return model

    finding = found(program)["HK009"]
    assert finding.severity == "error" and words in finding.message and advice in str(finding.remedy)


# Gradients that are NaN, though the optimizer gets none that is.


def with_bad_gradients(bad: range, *, cleans: bool, scales: bool = False, number: int = 14) -> nn.Module:
    """Where the gradient is NaN, though the loss is not, the program replaces it, or leaves the step out."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", 2.0, enabled=scales)
    for step in range(number):
        h = model(torch.randn(16, 8))
        if step in bad:
            h = h + (h * 0).square().sum(1, keepdim=True).sqrt()
        optimizer.zero_grad()
        scaler.scale(h.square().mean()).backward()
        if cleans:
            for parameter in model.parameters():
                parameter.grad.nan_to_num_(0.0)
        if scales or nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
            scaler.step(optimizer)
            scaler.update()
    return model


@pytest.mark.parametrize(
    ("program", "severity", "words"),
    [
        swept(partial(with_bad_gradients, range(5, 6), cleans=True), "warning", "as the optimizer stepped (step 5)"),
        swept(partial(with_bad_gradients, range(5, 6), cleans=False), "warning", "as the optimizer stepped (step 5)"),
        (partial(with_bad_gradients, range(7, 14), cleans=False), "error", "none of 7 backward passes was followed"),
        (partial(with_bad_gradients, range(13, 14), cleans=False), "warning", "values of the gradient of its output"),
        swept(partial(with_bad_gradients, range(5, 6), cleans=False, scales=True), "", ""),
        swept(partial(with_bad_gradients, range(0), cleans=False), "", ""),
    ],
)
def test_gradients_that_are_nan_on_their_way_are_said(program: Program, severity: str, words: str) -> None:
    finding = found(program).get("HK004")
    assert (finding.severity, finding.fqn) == (severity, "") if finding else not severity
    assert finding is None or words in finding.message


def test_gradients_of_inputs_after_the_training_are_no_steps_that_did_not_happen() -> None:
    def program() -> nn.Module:
        model = net()
        trained(model, torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(6):
            model(torch.randn(4, 8, requires_grad=True)).square().mean().backward()
        return model

    assert found(program) == {}


@pytest.mark.sweep
def test_the_verdict_is_that_of_all_steps_whichever_is_shown(tmp_path: Path) -> None:
    """The last step never came to its end: the one before it is shown, with what it judged and all that came after."""

    seen = observed(partial(with_bad_gradients, range(7, 14), cleans=False), check=True)
    record = read_record(save(tmp_path / "run.jsonl", [HEADER, *seen.recorded, end()]))
    (shown,) = record.last()
    assert (shown.step, shown.complete) == (6, True)
    verdict = report(judged(record, shown), "check")
    assert [finding.check for finding in verdict.findings] == ["HK004"] and verdict.totals["steps"] == 7
    whole = next(step for step in seen.recorded if step.step == 6 and step.complete)
    assert {*verdict.meta["checks"]} == {*report(judged(record, whole), "check").meta["checks"]}


# Findings that stay, with their step.


@pytest.mark.sweep
@pytest.mark.parametrize("begins_at", [None, swept(0), 4])
def test_missing_values_that_the_model_fills_in_are_an_error_once_it_does_not(begins_at: int | None) -> None:
    def program() -> nn.Module:
        model = Fills()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(6):
            x = torch.randn(32, 8)
            x[0, 0] = torch.nan
            model.fills = begins_at is None or step < begins_at
            optimizer.zero_grad()
            model(x).square().nanmean().backward()
            optimizer.step()
        return model

    findings = found(program)
    assert findings["HK002"].severity == ("info" if begins_at is None else "error")
    assert findings["HK002"].message.endswith("(step 4)") == (begins_at == 4)
    assert ("HK003" in findings) == (begins_at is not None)


class Fills(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fills, self.layer = True, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.nan_to_num() if self.fills else x)
        return y


@pytest.mark.sweep
def test_the_first_and_the_largest_findings_stay_with_their_step_and_causes_come_before() -> None:
    """Large outputs in step 2 alone, and in step 4 a gradient whose update leaves NaN in a weight."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    def program() -> nn.Module:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for step in range(7):
            first, second = model(torch.randn(32, 8) * (1e6 if step == 2 else 1.0))
            optimizer.zero_grad()
            (first.square().mean() + second.nan_to_num().square().mean()).backward()
            if step == 4:
                model.b.weight.grad[0, 0] = torch.nan
            optimizer.step()
        return model

    findings = found(program)
    assert findings["HK016"].message.endswith("65504 (step 2)")
    assert findings["HK004"].message == "1 of 32 values of its gradient are NaN (step 4)"
    assert findings["HK004"].cause == ""
    assert findings["HK005"].message == "1 of 32 values are NaN; the update of step 4 made them so (step 5)"
    assert "--first-bad" in findings["HK005"].remedy
    assert findings["HK003"].cause == "HK005 b.weight"


@pytest.mark.parametrize(
    ("how", "every", "place", "words"),
    [
        ("forward", 1, "1.running_mean", "a forward made them so between step 4 and step 5"),
        swept("after", 1, "0.weight", "they became so after the update of step 4"),
        swept("after", 3, "0.weight", "they became so after the update of step 3, before step 6"),
        swept("frozen", 1, "0.bias", "they became so between step 4 and step 5"),
        swept("gradient", 1, "0.weight", "1 of 32 values are NaN; the update of step 4 made them so (step 5)"),
        ("update", 1, "0.weight", "the update of step 4 made 32 of 32 values NaN or infinite"),
        swept("", 1, "", ""),
    ],
)
def test_what_made_tensors_nan_is_said_as_far_as_it_is_known(how: str, every: int, place: str, words: str) -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        model[0].bias.requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-3)
        for step in range(7):
            optimizer.zero_grad()
            model(torch.randn(32, 8)).square().mean().backward()
            if how == "gradient" and step == 4:
                model[0].weight.grad[0, 0] = torch.nan
            optimizer.param_groups[0]["lr"] = math.inf if how == "update" and step == 4 else 1e-3
            optimizer.step()
            with torch.no_grad():
                if how == "forward" and step == 4:
                    model(torch.full((32, 8), math.inf))
                elif how in ("after", "frozen") and step == 4:
                    (model[0].weight if how == "after" else model[0].bias)[0] = torch.nan
        return model

    finding = found(program, every=every).get("HK005")
    assert (finding.fqn if finding else "") == place
    assert finding is None or words in finding.message


@pytest.mark.sweep
def test_weights_that_a_run_begins_with_are_the_checkpoints() -> None:
    def program() -> nn.Module:
        model = net()
        with torch.no_grad():
            model[3].bias[0] = torch.nan
        return trained(model, torch.optim.SGD(model.parameters(), 0.1), 2)

    finding = found(program)["HK005"]
    assert finding.message.startswith("1 of 3 values are NaN") and "made them so" not in finding.message
    assert "checkpoint" in finding.remedy


@pytest.mark.sweep
def test_a_model_with_a_part_without_a_hash_is_left_out_and_the_others_are_recorded() -> None:
    class Unhashable(nn.Linear):
        __hash__ = None  # type: ignore[assignment]

    odd = nn.Sequential(nn.Linear(8, 8), Unhashable(8, 8))
    model = net()

    def program() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(odd(torch.randn(4, 8))).sum().backward()
            optimizer.step()

    seen = observed(program, check=True)
    assert [(step.model, step.step) for step in seen.recorded] == [("Sequential", number) for number in range(3)]
