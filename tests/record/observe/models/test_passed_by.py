"""Modules whose forward is called without them: no hook is told, and the reason is, which is not torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from observing import Seen, observed, report
from torch import Tensor, nn
from torch.nn.functional import linear

from hookcli.hooks.torch_private.dynamo import frames_compiled
from hookcli.record.observe.models.model import why_never_ran
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    def loss(self, x: Tensor) -> Tensor:
        return self.forward(x).sum()

    def encoded(self, x: Tensor) -> Tensor:
        return self.body(x).sum()


class Functional(Net):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.body[0].weight).sum()


EARLY = Functional()  # made before any test begins


def notes_of(program: object) -> tuple[list[str], Observer]:
    observer = Observer(RecordingPlan(every=1), Seen()).start()
    try:
        program()  # type: ignore[operator]
    finally:
        observer.stop()
    return observer.notes(), observer


def trained(model: nn.Module, method: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        getattr(model, method)(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_forward_that_is_called_directly_is_told_once() -> None:
    (note,), observer = notes_of(lambda: trained(Net(), "loss"))
    assert note.startswith("Net was never called as model(x), and Net.forward(x) runs no hooks: call model(x)")
    assert set(observer.models.counts) == {"Net.body", "Net.head"} and "compile" not in note
    assert not any(tally.notes for tally in observer.models.counts.values())


@pytest.mark.sweep
def test_calls_as_they_should_be_say_nothing() -> None:
    assert notes_of(lambda: trained(Net(), "__call__"))[0] == []
    assert notes_of(lambda: trained(Net(), "encoded"))[0] == []  # parts that the program calls by themselves


@pytest.mark.sweep
def test_a_wrapper_that_calls_forward_sees_all_but_that_module() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner.forward(x)

    notes, observer = notes_of(lambda: trained(Wrapper(), "__call__"))
    assert notes == [] and set(observer.models.counts) == {"Wrapper"}


@pytest.mark.sweep
def test_weights_that_are_used_without_calling_any_module() -> None:
    (note,) = observed(lambda: trained(Functional(), "forward")).ran["parameters of SGD"].notes
    assert note.startswith("Functional was never called as model(x)") and "compile" not in note


def test_a_class_that_calls_forward_itself() -> None:
    class Own(Functional):  # as GPyTorch's modules
        def __call__(self, *args: Any) -> Any:
            return self.forward(*args)

    (note,) = observed(lambda: trained(Own(), "__call__")).ran["parameters of SGD"].notes
    assert note == "Own has a __call__ of its own, which runs no hooks"


@pytest.mark.sweep
@pytest.mark.usefixtures("all_objects")
def test_their_module_is_found_among_all_objects_of_a_process() -> None:
    """Also beside one whose constructor has not run."""
    unborn = Net.__new__(Net)
    why = why_never_ran(torch.optim.SGD(EARLY.parameters()), frames_compiled())
    assert why.startswith("Functional was never called as model(x)") and unborn is not None


def test_tensors_of_no_module() -> None:
    def program() -> None:
        z = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([z], lr=0.1)
        z.sum().backward()
        optimizer.step()

    (note,) = observed(program).ran["parameters of SGD"].notes
    assert note.startswith("tensors of no module")


class OwnCall(nn.Module):
    """Replaces `__call__`, as GPyTorch's modules do: no hook sees its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.sweep
def test_a_model_that_no_hook_sees_and_a_lone_parameter_have_their_losses_and_learning_rates() -> None:
    """Each of its own backward passes, as of a temperature beside a critic (SAC)."""

    def program() -> list[Tensor]:
        critic, log_alpha = OwnCall(), torch.zeros(1, requires_grad=True)
        optimizers = [torch.optim.SGD(critic.parameters(), lr=0.5), torch.optim.Adam([log_alpha], lr=0.25)]
        for number in range(3):
            for loss, optimizer in zip(
                [critic(torch.ones(3)).sum(), log_alpha.sum() + number], optimizers, strict=True
            ):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return [critic.weight.detach(), log_alpha.detach()]

    seen = observed(program)
    losses = {name: [step.loss for step in seen.of(name)] for name in seen.ran}
    assert losses["parameters of SGD"] == [None, 1.5, 0.0]  # known from its first step on
    assert losses["parameters of Adam"] == [None, pytest.approx(0.75), pytest.approx(1.5)]
    for name, lr in (("parameters of SGD", 0.5), ("parameters of Adam", 0.25)):
        assert [report(step, "optimizer").rows[0]["lr"] for step in seen.of(name)] == [lr] * 3
        assert seen.steps(name) == [0, 1, 2] and all(step.complete for step in seen.of(name))
