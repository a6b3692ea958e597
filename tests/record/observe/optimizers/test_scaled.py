"""Mixed precision with a GradScaler: figures are those of the unscaled loss, and steps that it leaves out are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from observing import observed, rows
from support import assert_stats, float64_stats, swept
from torch import Tensor, nn

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))


class OwnScale(torch.amp.GradScaler):
    """Scales losses by a method of its own."""

    def scale(self, outputs: Any) -> Any:
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(outputs.device)
        return (outputs * self._scale).type(outputs.dtype)


def later(device: str, **how: Any) -> torch.amp.GradScaler:
    """A class that the program makes while it is observed, as if it were imported then."""
    return type("Later", (torch.amp.GradScaler,), {"scale": OwnScale.scale})(device, **how)


def of_fsdp(device: str, **how: Any) -> torch.amp.GradScaler:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device, process_group=torch.distributed.group.WORLD, **how)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).pow(2).mean()


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "fused Adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("make", [OwnScale, later, swept(of_fsdp)])
def test_a_class_that_scales_losses_itself_is_heard(make: Callable[..., torch.amp.GradScaler], alone: None) -> None:
    """After the run it is as it was."""
    before = vars(OwnScale)["scale"], vars(torch.amp.GradScaler)["__init__"]
    test_figures_are_unscaled("SGD", True, make)
    assert (vars(OwnScale)["scale"], vars(torch.amp.GradScaler)["__init__"]) == before


@pytest.mark.sweep
@pytest.mark.parametrize("unscaled_first", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", [torch.amp.GradScaler])
def test_figures_are_unscaled(name: str, unscaled_first: bool, make: Callable[..., torch.amp.GradScaler]) -> None:
    """The scale is a power of two, so that scaled figures would be off by 1024 and unscaled ones by nothing."""

    def program() -> nn.Module:
        model, scaler = net(), make("cpu", init_scale=1024.0)
        optimizer = OPTIMIZERS[name](model.parameters())
        for part in X.chunk(2):
            scaler.scale(loss_of(model, part) / 2).backward()
        if unscaled_first:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return model

    recorded, model = observed(program).only, net().double()
    losses, of_output = [], []
    for part in X.double().chunk(2):
        y = model(part)
        y.retain_grad()
        loss = y.pow(2).mean() / 2
        loss.backward()
        losses.append(loss.item())
        of_output.append(y.grad)
    assert recorded.losses == pytest.approx(losses, rel=1e-6)
    assert_stats(rows(recorded, "grads", "output")["2"].stats, float64_stats(torch.cat(of_output)))
    for fqn, p in model.named_parameters():
        assert_stats(rows(recorded, "grads", "parameter")[fqn].stats, float64_stats(p.grad))
    assert any("GradScaler's scale, 1024" in note for note in recorded.notes)


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["scaled", "clamped"])
def test_changes_that_no_version_shows_are_measured(how: str) -> None:
    """The gradient of the last bias has a sum of 0, that of the large table is 0 at nearly all places."""

    def program() -> nn.Module:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(80_000, 4), nn.Linear(4, 2))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=how == "scaled")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scores = model(torch.tensor([7, 70_000, 7, 123]))
        scaler.scale(nn.functional.cross_entropy(scores, torch.tensor([0, 1, 0, 1]))).backward()
        if how == "clamped":
            for p in model.parameters():
                p.grad.data.clamp_(-1e-3, 1e-3)
        scaler.step(optimizer)
        scaler.update()
        return model

    measured = rows(observed(program).only, "grads", "parameter")
    for fqn, p in program().named_parameters():
        assert_stats(measured[fqn].stats, float64_stats(p.grad))


@pytest.mark.sweep
@pytest.mark.parametrize("first_bad", [None, "report", "stop"])
def test_a_step_that_is_left_out_is_told_and_is_no_bad_value(first_bad: str | None) -> None:
    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, X) * 100).backward()  # finite, but not the scaled one
            scaler.step(optimizer)
            scaler.update(2.0)
        return model

    seen = observed(program, first_bad=first_bad)
    loss = (loss_of(net(), X) * 100).item()
    assert [(w.step, w.losses) for w in seen.recorded] == [(0, [loss]), (0, [loss])]
    assert any("skipped a step" in note for note in seen.recorded[0].notes)
    assert not any("skipped a step" in note for note in seen.recorded[1].notes)
    assert [r.probe for r in seen.recorded[0].reports] == ["activations", "grads", "time"]
    (overflowed,) = [row for row in seen.recorded[0].reports[1].rows if row.fqn == "2.weight"]
    assert overflowed.stats.inf + overflowed.stats.nan > 0
    assert seen.ran["Sequential"].steps == 1 and seen.non_finites == []


@pytest.mark.sweep
@pytest.mark.parametrize("first_bad", ["report", "stop"])
def test_an_overflow_of_gradients_that_no_pass_told_of_is_no_bad_value(first_bad: str) -> None:
    """torch.autograd.grad is not a backward(); the activations' gradients are finite, those of weights overflow."""

    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0**100)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        grads = torch.autograd.grad(scaler.scale(loss_of(model, X * 1e9)), list(model.parameters()))
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad * 1e30
        scaler.step(optimizer)
        scaler.update(2.0)
        return model

    seen = observed(program, first_bad=first_bad)
    assert seen.non_finites == [] and any("skipped a step" in note for note in seen.only.notes)


@pytest.mark.sweep
def test_a_fused_optimizer_leaves_out_its_step_by_itself() -> None:
    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, X) * 100).backward()
            scaler.step(optimizer)
            scaler.update(2.0)
        return model

    first, second = observed(program).recorded
    assert {row["update"] for row in rows(first, "updates").values()} == {0.0}
    assert [any("skipped a step" in note for note in recorded.notes) for recorded in (first, second)] == [True, False]


def test_of_two_optimizers_one_leaves_its_step_out() -> None:
    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0)
        first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model[0], model[2]))
        scaler.scale(loss_of(model, X)).backward()
        model[0].weight.grad.fill_(float("inf"))
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        return model

    recorded = observed(program).only
    assert set(rows(recorded, "updates")) == {"2.weight", "2.bias"} and recorded.seconds is not None
    assert any("skipped a step" in note for note in recorded.notes)


def test_a_pass_of_a_sum_of_scaled_losses() -> None:
    """The scale is a power of two, so that dividing by it loses nothing."""

    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for part in X.chunk(2):
            y = model(part)
            (scaler.scale(y.pow(2).mean()) + scaler.scale(y.sum())).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        model(X).sum().backward()  # another step, without a scaler
        optimizer.step()
        return model

    (recorded, _, last), model = observed(program).recorded, net().double()
    y = model(X[:4].double())
    y.retain_grad()
    loss = y.pow(2).mean() + y.sum()
    loss.backward()
    assert recorded.losses == pytest.approx([loss.item()], rel=1e-5)
    assert_stats(rows(recorded, "grads", "output")["2"].stats, float64_stats(y.grad))  # type: ignore[arg-type]
    assert any("GradScaler.scale did not return" in note for note in recorded.notes) and last.notes == []


@pytest.mark.sweep
def test_passes_of_different_scales_in_one_step() -> None:
    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=64.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(loss_of(model, X[:4])).backward()
        model.zero_grad()
        scaler.update(2.0)
        scaler.scale(loss_of(model, X[4:])).backward()
        scaler.step(optimizer)
        loss_of(model, X).backward()
        return model

    (recorded, last), model = observed(program).recorded, net().double()
    y = model(X.double())
    y.retain_grad()
    (y[:4].pow(2).mean() + y[4:].pow(2).mean()).backward()
    assert_stats(rows(recorded, "grads", "output")["2"].stats, float64_stats(y.grad))  # type: ignore[arg-type]
    assert any(note.endswith("scale, 64, 2") for note in recorded.notes)
    assert not any("scale" in note for note in last.notes) and not last.complete


def test_autocast_and_a_scaler_that_is_off() -> None:
    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", enabled=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, X)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return model

    recorded = observed(program).only
    assert recorded.notes == [] and rows(recorded, "activations")["0"]["dtype"] == "bfloat16"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert recorded.losses == [loss_of(net(), X).item()]
