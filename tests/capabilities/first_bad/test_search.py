"""--first-bad: the first value that is not finite, what came before it, and a program that is stopped there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import Seen, observed, observing, rows
from torch import Tensor, nn

from hookcli.record.file.views.run_lines import non_finite_line
from hookcli.record.observe.ending import StopProgram


class Poison(nn.Module):
    """Returns `value` in one place from its third call on; `grad`: hands it on to the gradient instead."""

    def __init__(self, value: float, grad: bool = False) -> None:
        super().__init__()
        self.value, self.grad, self.calls = value, grad, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls < 3:
            return x * 1.0
        if self.grad:
            x = x * 1.0
            x.register_hook(lambda g: torch.where(g == g.flatten()[0], self.value, g))
            return x
        mask = torch.zeros_like(x)
        mask[0, :2] = self.value
        return x + mask


def net(value: float = float("nan"), grad: bool = False) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), Poison(value, grad), nn.Linear(8, 2), nn.Identity()
    )


def train(model: nn.Module, steps: int = 5, loss_of: Callable[[int, Tensor], Tensor] | None = None) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        y = model(torch.randn(3, 4))
        (loss_of(step, y) if loss_of else y.pow(2).sum()).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("value", "counts"), [(float("nan"), (2, 0)), (float("inf"), (0, 2))])
def test_the_first_bad_output(value: float, counts: tuple[int, int]) -> None:
    seen = observed(lambda: train(net(value)), every=100, first_bad="report")
    (bad,) = seen.non_finites
    assert (bad.model, bad.phase, bad.step, bad.fqn, bad.what) == ("Sequential", "train", 2, "3", "output")
    assert (bad.nan, bad.inf) == counts
    (report,) = bad.reports
    assert [row.fqn for row in report.rows] == ["0", "1", "2", "3"]
    assert [row["nan"] + row["inf"] for row in report.rows] == [0, 0, 0, 2]
    assert seen.steps() == [0, 2]  # the step that went bad is in the record; else that is as without the search


def test_five_rows_are_shown_before_the_bad_one() -> None:
    def program() -> nn.Module:
        layers = [nn.Linear(4, 4) for _ in range(9)]
        return train(nn.Sequential(*layers[:7], Poison(float("nan")), *layers[7:]))

    (bad,) = observed(program, every=100, first_bad="report").non_finites
    assert [row.fqn for row in bad.reports[0].rows] == ["2", "3", "4", "5", "6", "7"] and bad.fqn == "7"


def test_the_rows_before_may_be_of_an_earlier_forward_of_the_step() -> None:
    def program() -> nn.Module:
        model = nn.Sequential(Poison(float("nan")), nn.Linear(4, 4), nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sum(model(torch.ones(2, 4)).sum() for _ in range(4)).backward()
        optimizer.step()
        return model

    (bad,) = observed(program, every=100, first_bad="report").non_finites
    assert [(row.fqn, row["call"]) for row in bad.reports[0].rows] == [
        ("", 0), ("0", 1), ("1", 1), ("2", 1), ("", 1), ("0", 2),
    ]  # fmt: skip
    assert bad.nan == 2


def test_a_bad_gradient() -> None:
    seen = observed(lambda: train(net(grad=True)), every=100, first_bad="report")
    (bad,) = seen.non_finites
    assert (bad.step, bad.fqn, bad.what) == (2, "3", "gradient") and bad.nan >= 1
    assert [row.fqn for row in bad.reports[0].rows][-2:] == ["4", "3"]


def test_a_bad_loss() -> None:
    def loss_of(step: int, y: Tensor) -> Tensor:
        return y.sum().detach() * 0 + (y.sum() * float("inf" if step == 1 else 1))

    seen = observed(lambda: train(net(0.0), loss_of=loss_of), every=100, first_bad="report")
    (bad,) = seen.non_finites
    assert (bad.step, bad.what, bad.fqn, bad.inf, bad.nan) == (1, "loss", "", 1, 0)


@pytest.mark.parametrize("bad_pass", [0, 1, 2])
def test_a_bad_loss_is_found_in_each_pass_also_after_gradients_were_cleared(bad_pass: int) -> None:
    """As in a GAN: the maker's pass leaves gradients in the critic, which are cleared before the critic's two."""

    def program() -> nn.Module:
        critic = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        for step in range(2):
            for number in range(3):
                if number == 1:
                    optimizer.zero_grad()
                loss = critic(torch.randn(3, 4)).mean() + number
                (loss * (float("inf") if (step, number) == (1, bad_pass) else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return critic

    (bad,) = observed(program, every=100, first_bad="report", probes=("activations",)).non_finites
    assert (bad.model, bad.step, bad.what, bad.inf, bad.nan) == ("Linear", 1, "loss", 1, 0)


def test_a_bad_gradient_of_a_parameter_alone() -> None:
    def program() -> nn.Module:
        model = nn.Linear(2, 2)
        model.weight.register_hook(lambda g: g * float("nan"))
        return train_linear(model)

    def train_linear(model: nn.Linear) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return model

    (bad,) = observed(program, first_bad="report").non_finites
    assert (bad.fqn, bad.what, bad.nan) == ("weight", "parameter gradient", 4)


@pytest.mark.parametrize("where", ["output", "gradient", "loss"])
def test_the_program_is_stopped_before_the_weights_are(where: str) -> None:
    model = net(0.0) if where == "loss" else net(grad=where == "gradient")
    steps: list[dict[str, Tensor]] = []

    def loss_of(step: int, y: Tensor) -> Tensor:
        steps.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return y.pow(2).sum() * (float("nan") if where == "loss" and step == 2 else 1.0)

    cleaned = []
    with observing(every=100, first_bad="stop") as seen, pytest.raises(StopProgram) as stopped:
        try:
            train(model, loss_of=loss_of)
        finally:
            cleaned.append(True)
    assert stopped.value.code == 1 and cleaned and len(seen.non_finites) == 1 and seen.non_finites[0].step == 2
    assert len(steps) == (2 if where == "output" else 3)
    before = steps[-1] if where != "output" else None
    for name, p in model.named_parameters():
        assert p.isfinite().all() and (before is None or torch.equal(p, before[name]))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_without_grad() -> None:
    def program() -> Tensor:
        model = net()
        with torch.no_grad():
            return torch.cat([model(torch.ones(2, 4)) for _ in range(4)])

    (bad,) = observed(program, every=100, first_bad="report").non_finites
    assert (bad.phase, bad.step, bad.fqn, bad.nan) == ("no_grad", 2, "3", 2)


def test_only_what_is_asked_for_is_searched() -> None:
    def found(**plan: Any) -> Seen:
        return observed(lambda: train(net()), every=1, first_bad="report", **plan)

    assert [bad.fqn for bad in found(match="5").non_finites] == ["5"]
    assert found(stop=2).non_finites == []
    (bad,) = found(match="0").non_finites
    assert bad.what == "loss"
    (bad,) = found(probes=("grads",)).non_finites
    assert bad.what in ("loss", "gradient")


def test_after_the_first_bad_value_steps_cost_what_they_did() -> None:
    seen = observed(lambda: train(net(), steps=8), every=4, first_bad="report")
    assert seen.steps() == [0, 2, 4] and len(seen.non_finites) == 1
    assert rows(seen.recorded[2], "activations")["3"].stats.nan > 0


@pytest.mark.parametrize("where", ["input", "weight"])
def test_what_was_not_finite_before(where: str) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        x = torch.ones(2, 4)
        with torch.no_grad():
            (x if where == "input" else model[1].weight)[0, 0] = float("nan")
        model(x)

    (bad,) = observed(program, first_bad="report").non_finites
    where_in_batch = "only in row 0 of 2 (first dimension, counted from 0)"
    expected = ("", "input", where_in_batch) if where == "input" else ("1", "output", "its weight is not finite")
    assert (bad.fqn, bad.what, bad.cause) == expected
    if where == "input":
        assert (bad.nan, bad.inf) == (1, 0) and "1 NaN in the model's input (" in non_finite_line(bad)


def test_what_another_thread_finds_stops_the_main_one() -> None:
    model = nn.Linear(2, 2)
    done: list[float] = []

    def work() -> None:
        with torch.no_grad():
            for value in (1.0, float("nan"), 1.0):
                model(torch.full((1, 2), value))
                done.append(value)

    with observing(first_bad="stop") as seen, torch.no_grad():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(done) == 3 and len(seen.non_finites) == 1
        with pytest.raises(StopProgram):
            model(torch.ones(1, 2))
        model(torch.ones(1, 2))  # once
