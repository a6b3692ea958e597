"""Which steps are looked at, what belongs to one, and what is known of it besides its figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed, observing, rows
from support import assert_stats, float64_stats
from torch import Tensor, nn


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def training(steps: int = 7) -> Callable[[], nn.Module]:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).pow(2).mean().backward()
            optimizer.step()
        return model

    return program


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        ({"every": 1}, [0, 1, 2, 3, 4, 5, 6]),
        ({"every": 3}, [0, 3, 6]),
        ({"every": 100}, [0]),
        ({"every": 2, "start": 3}, [3, 5]),
        ({"every": 1, "start": 2, "stop": 4}, [2, 3]),
        ({"every": 1, "start": 50}, []),
        ({"every": 1, "max_seconds": 0.0}, []),
    ],
)
def test_steps_that_are_looked_at(plan: dict[str, Any], steps: list[int]) -> None:
    seen = observed(training(), **plan)
    assert seen.steps() == steps
    ran = seen.ran["Sequential"]
    assert (ran.forwards, ran.no_grad_forwards, ran.steps, ran.recorded_steps) == (7, 0, 7, len(steps))
    assert ran.parameters == 4 * 6 + 6 + 6 * 2 + 2


def test_after_max_seconds_nothing_more_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("hookcli.record.observe.recording_plan.time.monotonic", lambda: now)

    def program() -> None:
        nonlocal now
        model = net()
        for number in range(4):
            model(torch.ones(1, 4))
            now += 70 if number == 1 else 0

    with observing(max_seconds=60) as seen:
        program()
    assert seen.steps() == [0, 1] and seen.ran["Sequential"].forwards == 4


def test_the_loss_of_each_step_is_that_of_the_program() -> None:
    losses: list[float] = []

    def program() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.clear()
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 1]))
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    seen = observed(program)
    assert [list(recorded.losses) for recorded in seen.recorded] == [[loss] for loss in losses]


def test_a_backward_pass_without_a_scalar_has_no_loss() -> None:
    def program() -> nn.Module:
        model = net()
        y = model(torch.ones(2, 4))
        y.backward(torch.ones_like(y))
        return model

    recorded = observed(program).only
    assert recorded.losses == [] and rows(recorded, "grads", "output")[""].stats.l2 == 2.0


def test_times_are_those_of_the_program() -> None:
    def program() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            model(torch.ones(1, 4)).sum().backward()
            time.sleep(0.02)
            optimizer.step()
            time.sleep(0.2)  # loads data

    with observing(every=4) as seen:
        program()
    first, last = seen.recorded
    assert first.plain_seconds is None
    for seconds in (first.seconds, last.seconds, last.plain_seconds):
        assert seconds is not None and 0.02 <= seconds < 0.2


def test_validation_is_told_apart_from_training() -> None:
    outputs: list[Tensor] = []

    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outputs.clear()
        for _ in range(2):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(3, 4)).pow(2).mean().backward()
                optimizer.step()
            with torch.no_grad():
                model.eval()
                outputs.extend(model(torch.randn(2, 4)) for _ in range(5))
                model.train()
        return model

    seen = observed(program, every=2)
    assert seen.steps() == [0, 2]
    places = [(w.step, w.forward) for w in seen.of(phase="no_grad")]
    assert places == [(2, 0), (2, 2), (2, 4), (4, 0), (4, 2), (4, 4)]
    ran = seen.ran["Sequential"]
    assert (ran.forwards, ran.no_grad_forwards, ran.steps) == (4, 10, 4)
    for recorded, output in zip(seen.of(phase="no_grad"), [outputs[n] for n in (0, 2, 4, 5, 7, 9)], strict=True):
        assert [r.probe for r in recorded.reports] == ["activations"]
        assert recorded.losses == [] and recorded.seconds is not None
        assert_stats(rows(recorded, "activations")[""].stats, float64_stats(output))


def test_a_model_without_an_optimizer_counts_its_forwards() -> None:
    def program() -> list[Tensor]:
        model = net()
        return [model(torch.full((1, 4), float(n))) for n in range(5)]

    seen = observed(program, every=2)
    assert seen.steps() == [0, 2, 4] and seen.ran["Sequential"].steps == 0
    assert all(recorded.forwards == 1 and recorded.seconds is not None for recorded in seen.recorded)
    with torch.no_grad():
        seen = observed(program, every=2)
    assert seen.steps(phase="no_grad") == [0, 2, 4] and [w.forward for w in seen.recorded] == [None] * 3


def test_gradients_and_updates_of_a_program_that_steps_by_hand() -> None:
    def program() -> nn.Module:
        model = nn.Linear(3, 2)
        for _ in range(3):
            model(torch.ones(2, 3)).pow(2).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        return model

    seen = observed(program)
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    for number, recorded in enumerate(seen.recorded):
        model(torch.ones(2, 3).double()).pow(2).sum().backward()
        assert recorded.step == number and [r.probe for r in recorded.reports] == ["activations", "grads"]
        for fqn, p in model.named_parameters():
            assert_stats(rows(recorded, "grads", "parameter")[fqn].stats, float64_stats(p.grad), rel=1e-4)
            p.data -= 0.1 * p.grad
            p.grad = None
    assert seen.steps() == [0, 1, 2]


def test_a_gan() -> None:
    """Two models, two optimizers: the discriminator's step has its own backward pass and that of the generator."""
    loss_of: dict[str, list[float]] = {}

    def program() -> tuple[nn.Module, nn.Module]:
        generator, critic = nn.Sequential(nn.Linear(2, 4)), nn.Linear(4, 1)
        g, c = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, critic))
        loss_of.update(g=[], c=[])
        for _ in range(3):
            fake = generator(torch.randn(5, 2))
            loss = critic(fake.detach()).mean() - critic(torch.randn(5, 4)).mean()
            c.zero_grad()
            loss.backward()
            c.step()
            loss_of["c"].append(loss.item())
            loss = -critic(fake).mean()
            g.zero_grad()
            loss.backward()
            g.step()
            loss_of["g"].append(loss.item())
        return generator, critic

    seen = observed(program)
    assert seen.steps("Sequential") == [0, 1, 2]
    assert seen.steps("Linear") == [0, 1, 2, 3]  # the last one's optimizer has not stepped when the program ends
    assert [list(w.losses) for w in seen.of("Sequential")] == [[loss] for loss in loss_of["g"]]
    critic = [[loss] for loss in loss_of["c"]]  # its gradients by the generator's pass are cleared before it steps
    assert [list(w.losses) for w in seen.of("Linear")] == [*critic, loss_of["g"][2:]]
    for recorded in seen.of("Sequential"):
        assert rows(recorded, "updates").keys() == {"0.weight", "0.bias"}


@pytest.mark.parametrize("kept", [True, False])
def test_steps_go_on_where_another_optimizer_takes_over(kept: bool) -> None:
    """First the head alone is trained, then all of it: by another optimizer, beside which the first may live on."""

    alive: list[object] = []

    def program() -> nn.Module:
        model = net()
        first = torch.optim.SGD(model[2].parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            first.step()
        alive[:] = [first] if kept else []
        del first
        second = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            second.step()
        return model

    seen = observed(program, every=2)
    assert seen.steps() == [0, 2, 4, 6] and seen.ran["Sequential"].steps == 7


def test_parameters_that_an_optimizer_gets_later() -> None:
    def program() -> tuple[nn.Module, nn.Module]:
        body, head = nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2))
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for number in range(4):
            if number == 2:
                optimizer.add_param_group({"params": list(body.parameters())})
            head(body(torch.ones(2, 4))).sum().backward()
            optimizer.step()
        return body, head

    seen = observed(program)
    assert seen.steps("Linear") == seen.steps("Sequential") == [0, 1, 2, 3]
    moved = [any(r.probe == "updates" for r in recorded.reports) for recorded in seen.of("Linear")]
    assert moved == [False, False, True, True] and seen.recorded[-1].notes == []


def test_tensors_that_are_no_module_s() -> None:
    def program() -> Tensor:
        z = torch.full((4,), 2.0, requires_grad=True)
        optimizer = torch.optim.SGD([z], lr=0.25)
        for _ in range(3):
            optimizer.zero_grad()
            z.pow(2).sum().backward()
            optimizer.step()
        return z.detach()

    seen = observed(program)
    name = "parameters of SGD"
    assert seen.ran.keys() == {name} and seen.ran[name].steps == 3 and seen.steps() == [0, 1, 2]
    for recorded, z in zip(seen.recorded, (2.0, 1.0, 0.5), strict=True):  # each step halves it
        assert (rows(recorded, "updates")["0"]["weight"], rows(recorded, "updates")["0"]["update"]) == (z * 2, z)
        assert rows(recorded, "grads", "parameter")["0"].stats.l2 == z * 4  # type: ignore[union-attr]


def test_a_step_of_two_optimizers_is_one() -> None:
    def program() -> nn.Module:
        model = net()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model[0], model[2])]
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        return model

    seen = observed(program)
    assert seen.steps() == [0, 1, 2, 3] and seen.ran["Sequential"].steps == 4


def test_steps_of_models_of_one_name_are_added_up() -> None:
    def program() -> None:
        for _ in range(19):
            model = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()

    seen = observed(program, every=2)
    assert seen.ran["Linear"].steps == 2 and seen.ran["Linear (further ones)"].steps == 3 * 2


@pytest.mark.parametrize("probes", [("activations",), ("grads",)])
def test_a_pass_is_of_the_models_that_it_goes_through(probes: tuple[str, ...]) -> None:
    def program() -> list[nn.Module]:
        models = [net(), net()]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
        losses = [model(torch.ones(2, 4)).sum() * 0 + number for number, model in enumerate(models)]
        for loss in losses:
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return models

    assert [list(w.losses) for w in observed(program, probes=probes).recorded] == [[0], [1]]


def test_losses_of_accumulated_gradients_are_all_of_the_step() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for number in range(3):
                (model(torch.ones(2, 4)).sum() * 0 + number).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    assert [list(w.losses) for w in observed(program).recorded] == [[0, 1, 2]] * 2


def test_match_narrows_modules_and_parameters() -> None:
    recorded = observed(training(1), match="2*").only
    assert set(rows(recorded, "activations")) == set(rows(recorded, "grads", "output")) == {"2"}
    assert set(rows(recorded, "grads", "parameter")) == set(rows(recorded, "updates")) == {"2.weight", "2.bias"}
    recorded = observed(training(1), match="2").only  # a module stands for its parameters
    assert set(rows(recorded, "updates")) == {"2.weight", "2.bias"}


@pytest.mark.parametrize("probes", [("activations",), ("grads",), ("updates",), ("inputs", "updates")])
def test_probes(probes: tuple[str, ...]) -> None:
    seen = observed(training(3), probes=probes, every=2)
    assert seen.steps() == [0, 2]
    assert all([r.probe for r in recorded.reports] == list(probes) for recorded in seen.recorded)
    assert all(len(recorded.losses) == 1 for recorded in seen.recorded)


def test_inputs() -> None:
    def program() -> None:
        net()(torch.arange(4.0).view(1, 4))

    recorded = observed(program, probes=("inputs",)).only
    for fqn in ("", "0"):
        row = next(row for name, row in rows(recorded, "inputs").items() if row.fqn == fqn)
        assert_stats(row.stats, float64_stats(torch.arange(4.0)))


def test_of_many_forwards_in_one_step_the_first_are_looked_at() -> None:
    def program() -> None:
        model = nn.RNNCell(2, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        h = torch.zeros(1, 3)
        for _ in range(70):
            h = model(torch.ones(1, 2), h)
        h.sum().backward()
        optimizer.step()

    recorded = observed(program).only
    assert (recorded.forwards, recorded.observed_forwards) == (70, 64)
    assert rows(recorded, "activations")[""]["calls"] == 64


def test_parts_that_are_called_by_themselves_are_models_of_their_own() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[2](model[1](model[0](torch.ones(2, 4)))).sum().backward()
        optimizer.step()
        return model

    seen = observed(program)
    assert [w.model for w in seen.recorded] == ["Linear", "Linear #2"] and seen.others == {"ReLU": 1}
    assert all(set(rows(w, "updates")) == {"weight", "bias"} for w in seen.recorded)


def test_a_model_that_calls_itself() -> None:
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            return self(self.layer(x), depth - 1) if depth else x

    def program() -> Tensor:
        return Recursive()(torch.ones(1, 2))

    seen = observed(program)
    assert seen.ran["Recursive"].forwards == 1 and rows(seen.only, "activations")["layer"]["calls"] == 2


def test_a_model_that_is_new_in_each_turn_is_summed_up() -> None:
    def program() -> None:
        for _ in range(20):
            nn.Linear(2, 2)(torch.ones(1, 2))

    seen = observed(program)
    assert len(seen.ran) == 17 and seen.ran["Linear (further ones)"].forwards == 4
    assert len(seen.recorded) == 20
