"""Parameter groups: their settings, and norms before and after clipping, against a computation by hand."""

from __future__ import annotations

import math

import pytest
import torch
from observing import Seen, observed, report, rows, skipped
from record.observe.figures import net
from support import swept
from torch import nn

from hookcli.record.file.views.overview import step_totals

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(5))


def norm(*tensors: torch.Tensor) -> float:
    return math.sqrt(sum(x.double().pow(2).sum().item() for x in tensors))


@pytest.mark.sweep
def test_the_settings_and_norms_of_each_group() -> None:
    def program() -> nn.Module:
        model = net()
        groups = [{"params": model[0].parameters(), "weight_decay": 0.5}, {"params": model[2].parameters(), "lr": 0.2}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        for rate in (0.1, 0.01):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            model(X).pow(2).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        return model

    first, second = observed(program).recorded
    model = net().double()
    model(X.double()).pow(2).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    total = norm(*grads.values())
    for number, (row, names) in enumerate(
        zip(report(first, "optimizer").rows, (("0.weight", "0.bias"), ("2.weight", "2.bias")), strict=True)
    ):
        own = norm(*(grads[name] for name in names))
        assert (row["optimizer"], row["group"], row["momentum"], row["betas"]) == ("SGD", number, 0.9, None)
        assert (row["lr"], row["weight_decay"]) == ((0.1, 0.5), (0.2, 0.0))[number]
        assert row["parameters"] == (30, 14)[number]
        assert row["unclipped_grad"] == pytest.approx(own, rel=1e-5)
        assert row["param_grad"] == pytest.approx(own * 0.25 / total, rel=1e-4)
        assert row["weight"] == pytest.approx(norm(*(model.get_parameter(name) for name in names)), rel=1e-6)
        assert row["ratio"] == pytest.approx(row["update"] / row["weight"])
    assert step_totals(first)["unclipped_grad"] == pytest.approx(total, rel=1e-5)
    assert [row["lr"] for row in report(second, "optimizer").rows] == [0.01, 0.2]


@pytest.mark.sweep
@pytest.mark.parametrize("clip", [nn.utils.clip_grad_value_, "by hand", None])
def test_however_the_gradients_are_clipped_both_norms_are_known(clip: object) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.5, 0.75))
        for _ in range(2):  # accumulated
            model(X).sum().backward()
        for p in model.parameters() if clip == "by hand" else ():
            p.grad.data.clamp_(-0.5, 0.5)
        if callable(clip):
            clip(model.parameters(), 0.5)
        optimizer.step()
        return model

    (row,) = report(observed(program).only, "optimizer").rows
    model = net().double()
    (2 * model(X.double()).sum()).backward()
    grads = [p.grad for p in model.parameters()]
    assert row["unclipped_grad"] == pytest.approx(norm(*grads), rel=1e-5)
    assert row["param_grad"] == pytest.approx(norm(*(g.clamp(-0.5, 0.5) if clip else g for g in grads)), rel=1e-5)
    assert row["betas"] == [0.5, 0.75] and row["momentum"] is None


def test_the_norm_before_clipping_is_without_a_scalers_scale() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(model(X).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return model

    (row,) = report(observed(program).only, "optimizer").rows
    model = net().double()
    model(X.double()).sum().backward()
    assert row["unclipped_grad"] == pytest.approx(norm(*(p.grad for p in model.parameters())), rel=1e-5)
    assert row["param_grad"] == pytest.approx(1.0, rel=1e-4)


def test_a_learning_rate_in_a_tensor_is_that_of_the_step() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))
        for _ in range(2):
            model(X).sum().backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"].mul_(0.5)
        return model

    assert [report(step, "optimizer").rows[0]["lr"] for step in observed(program).recorded] == [0.5, 0.25]


def by_hand(steps: int = 4, **plan: object) -> Seen:
    def program() -> nn.Module:
        model = net()
        for _ in range(steps):
            model(X).pow(2).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        return model

    return observed(program, **plan)


@pytest.mark.parametrize("how", ["sgd", *map(swept, ("sgd with another rate", "momentum", "cleared", "sign"))])
def test_the_learning_rate_of_steps_by_hand_is_said_where_gradients_were_multiplied_by_it(how: str) -> None:
    rate = 0.003 if "another" in how else 0.1

    def program() -> nn.Module:
        model = net()
        last = [torch.zeros_like(p) for p in model.parameters()]
        for _ in range(3):
            loss = model(X).pow(2).sum()
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for number, p in enumerate(model.parameters()):
                    assert p.grad is not None
                    last[number] = 0.9 * last[number] + p.grad
                    p -= rate * {"momentum": last[number], "sign": p.grad.sign()}.get(how, p.grad)
            if how == "cleared":
                model.zero_grad(set_to_none=False)
        return model

    found = [
        [row["lr"] for r in step.reports if r.probe == "optimizer" for row in r.rows]
        for step in observed(program).recorded
    ]
    after_momentum = [rate] if how == "momentum" else []  # the first step has no momentum yet
    assert found == ([[], [rate], [rate]] if "sgd" in how else [[], after_momentum, []])


@pytest.mark.sweep
@pytest.mark.parametrize("every", [1, 2])
def test_updates_by_hand_are_those_since_the_forward_before(every: int) -> None:
    model = net().double()
    expected = []
    for _ in range(4):
        model.zero_grad()
        model(X.double()).pow(2).sum().backward()
        parameters = list(model.parameters())
        expected.append(0.1 * norm(*(p.grad for p in parameters)) / norm(*parameters))
        with torch.no_grad():
            for p in parameters:
                p -= 0.1 * p.grad
    seen = by_hand(every=every)
    assert seen.steps() == list(range(0, 4, every))
    for step in seen.recorded[1:]:
        own = rows(step, "updates").values()
        found = math.hypot(*(row["update"] for row in own)) / math.hypot(*(row["weight"] for row in own))
        assert found == pytest.approx(expected[step.step - 1], rel=1e-4)
        assert "no optimizer updates this model" in step.notes[0] and not skipped(step, "updates")
    assert all(r.probe != "updates" for r in seen.recorded[0].reports)  # nothing to compare with
