"""Steps of a program: which are looked at, their losses and times."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from observing import observed, observing, rows
from record.observe.programs import net, training
from support import assert_stats, float64_stats, swept
from torch import Tensor, nn


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        swept({"every": 1}, [0, 1, 2, 3, 4, 5, 6]),
        swept({"every": 3}, [0, 3, 6]),
        ({"every": 100}, [0]),
        swept({"every": 2, "start": 3}, [3, 5]),
        swept({"every": 1, "start": 2, "stop": 4}, [2, 3]),
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


@pytest.mark.sweep
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


@pytest.mark.sweep
def test_times_are_those_of_the_program() -> None:
    own = []

    def program() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            began = time.perf_counter()
            model(torch.ones(1, 4)).sum().backward()
            time.sleep(0.02)
            optimizer.step()
            own.append(time.perf_counter() - began)
            time.sleep(0.05)  # loads data

    with observing(every=4) as seen:
        program()
    first, last = seen.recorded
    assert first.plain_seconds is None
    for seconds, limit in ((first.seconds, own[0]), (last.seconds, own[4]), (last.plain_seconds, max(own[1:4]))):
        assert seconds is not None and 0.02 <= seconds <= limit


@pytest.mark.sweep
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

    seen = observed(program, every=2, no_grad=3)
    assert seen.steps() == [0, 2]
    places = [(w.step, w.forward) for w in seen.of(phase="no_grad")]
    assert places == [(2, 0), (2, 2), (2, 4), (4, 0), (4, 2), (4, 4)]
    ran = seen.ran["Sequential"]
    for limit, left_out in ((1, 4), (2, 2), (0, 6)):
        outputs.clear()
        narrow = observed(program, every=2, no_grad=limit)
        assert [(w.step, w.forward) for w in narrow.of(phase="no_grad")] == [p for p in places if p[1] < 2 * limit]
        assert narrow.steps() == [0, 2] and narrow.ran["Sequential"].left_out == left_out
    assert (ran.forwards, ran.no_grad_forwards, ran.steps) == (4, 10, 4)
    for recorded, output in zip(seen.of(phase="no_grad"), [outputs[n] for n in (0, 2, 4, 5, 7, 9)], strict=True):
        assert [r.probe for r in recorded.reports] == ["activations", "time"]
        assert recorded.losses == [] and recorded.seconds is not None
        assert_stats(rows(recorded, "activations")[""].stats, float64_stats(output))


@pytest.mark.sweep
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


@pytest.mark.sweep
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
        updates = ["updates"] if number else []  # there is nothing to compare the first weights with
        assert recorded.step == number
        assert [r.probe for r in recorded.reports] == ["activations", "grads", *updates, "time"]
        for fqn, p in model.named_parameters():
            assert_stats(rows(recorded, "grads", "parameter")[fqn].stats, float64_stats(p.grad), rel=1e-4)
            p.data -= 0.1 * p.grad
            p.grad = None
    assert seen.steps() == [0, 1, 2]


@pytest.mark.sweep
def test_lazy_parameters_have_no_updates_before_they_have_values() -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(2), nn.Linear(2, 1))
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        return model

    first, second = observed(program).recorded[1:]
    assert list(rows(first, "updates")) == ["1.weight", "1.bias"]
    assert list(rows(second, "updates")) == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.sweep
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
