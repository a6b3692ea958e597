"""Models are named by their class, parts by their model, and models of one class by their variables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from observing import observed, rows
from support import swept
from torch import Tensor, nn
from torch.nn.parallel import DataParallel
from torch.optim.swa_utils import AveragedModel

from hookcli.record.observe.naming import model_name


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        self.actor = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))

    def value(self, x: Tensor) -> Tensor:
        return self.critic(x)


class Auto(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc3 = nn.Linear(2, 1), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc1(x))


class Maker(nn.Linear):
    pass


class Early(nn.Linear):
    pass


LEFT, RIGHT = Early(1, 1), Early(1, 1)  # made before any test begins


class Trainer:
    """No module: it holds two."""

    def __init__(self) -> None:
        self.maker, self.taker = Maker(2, 2), Maker(2, 2)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module whose variables hang models, like `__main__`."""
    module = ModuleType("a_program")
    monkeypatch.setitem(sys.modules, "a_program", module)
    return module


@pytest.mark.parametrize("optimizers", [1, swept(2)])
def test_a_model_that_is_called_by_parts_is_one_if_one_optimizer_has_all(optimizers: int) -> None:
    """An actor and a critic are parts of a policy; the two models of a GAN have optimizers of their own."""

    def run() -> nn.Module:
        agent = Agent()
        groups = [agent.parameters()] if optimizers == 1 else [agent.critic.parameters(), agent.actor.parameters()]
        made = [torch.optim.SGD(group, lr=0.1) for group in groups]
        for _ in range(2):
            with torch.no_grad():
                agent.actor(torch.ones(1, 2))
            agent.zero_grad()
            (agent.value(torch.ones(1, 2)).sum() + agent.actor(torch.ones(1, 2)).sum()).backward()
            for optimizer in made:
                optimizer.step()
        return agent

    seen = observed(run)
    if optimizers == 2:
        assert list(seen.ran) == ["Agent.actor", "Agent.critic"]
        return
    (ran,) = seen.ran.values()
    assert (ran.model, ran.forwards, ran.no_grad_forwards, ran.steps) == ("Agent", 4, 2, 2)
    names = {"critic", "critic.0", "critic.1", "critic.2", "actor", "actor.0", "actor.1"}
    for recorded in seen.of(phase="train"):
        activations = rows(recorded, "activations")
        assert activations.keys() == names == rows(recorded, "grads", "output").keys() and recorded.loss is not None
        assert {row["calls"] for row in activations.values()} == {1}
        assert len(rows(recorded, "updates")) == 8


@pytest.mark.sweep
def test_parts_that_a_program_calls_keep_the_name_of_their_model() -> None:
    def run() -> list[nn.Module]:
        agent, auto = Agent(), Auto()
        optimizer = torch.optim.SGD([*agent.critic.parameters(), *auto.parameters()], lr=0.1)
        (agent.value(torch.ones(1, 2)) + agent.actor(torch.ones(1, 2)) + auto(torch.ones(1, 2))).sum().backward()
        optimizer.step()
        with torch.no_grad():
            auto.fc3(torch.ones(1, 1))
        return [agent, auto]

    seen = observed(run)
    assert list(seen.ran) == ["Agent.critic", "Agent.actor", "Auto"]
    assert seen.ran["Auto"].notes == ("fc3 was also called by itself, which counts as a forward of the model",)


@pytest.mark.sweep
def test_models_of_one_class_have_the_names_of_their_variables(program: ModuleType) -> None:
    program.left, program.right = Maker(2, 2), Maker(2, 2)  # type: ignore[attr-defined]
    assert [model_name(program.left), model_name(program.right)] == ["Maker (left)", "Maker (right)"]
    del program.right
    assert model_name(program.left) == "Maker"


@pytest.mark.sweep
@pytest.mark.usefixtures("all_objects")
def test_names_are_found_among_all_objects_of_a_process() -> None:
    assert [model_name(LEFT), model_name(RIGHT)] == ["Early (LEFT)", "Early (RIGHT)"]


@pytest.mark.sweep
def test_attributes_of_any_object_are_places() -> None:
    trainer = Trainer()
    assert [model_name(trainer.maker), model_name(trainer.taker)] == ["Maker (maker)", "Maker (taker)"]


def test_models_in_a_list_or_a_dict(program: ModuleType) -> None:
    program.nets = [Maker(2, 2), Maker(2, 2)]  # type: ignore[attr-defined]
    program.net = program.nets[0]  # type: ignore[attr-defined]  # as a loop leaves it
    assert [model_name(net) for net in program.nets] == ["Maker (nets[0])", "Maker (nets[1])"]
    program.nets = {"a": Maker(2, 2), 5: Agent()}  # type: ignore[attr-defined]
    program.other = Maker(2, 2)  # type: ignore[attr-defined]
    assert model_name(program.nets["a"]) == "Maker (nets['a'])"


class Key:
    def __repr__(self) -> str:
        raise RuntimeError("a key that can't be shown")


class Elsewhere:
    """An object whose class says by itself where it is defined."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model


Elsewhere.__module__ = property(lambda self: "remote")  # type: ignore[assignment]


@pytest.mark.sweep
def test_keys_and_classes_of_any_kind(program: ModuleType) -> None:
    """No code of the program's is run for a name."""
    program.nets = {Key(): Maker(2, 2), "a" * 1000: Maker(2, 2)}  # type: ignore[attr-defined]
    one, other = program.nets.values()
    holder = Elsewhere(one)
    assert model_name(other) == f"Maker (nets['{'a' * 40}…'])"
    assert model_name(one) == "Maker (model)" and holder.model is one


def test_a_name_that_cannot_be_found_ends_no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.record.observe.models.models.model_name", lambda module: 1 / 0)
    seen = observed(lambda: Maker(2, 2)(torch.ones(1, 2)).sum().item())
    assert list(seen.ran) == ["Maker"]


@pytest.mark.sweep
def test_parts_of_models_of_one_class(program: ModuleType) -> None:
    program.mine, program.yours = Agent(), Agent()  # type: ignore[attr-defined]
    assert [model_name(agent.actor) for agent in (program.mine, program.yours)] == [
        "Agent.actor (mine)",
        "Agent.actor (yours)",
    ]


@pytest.mark.sweep
def test_local_variables_are_not_looked_at() -> None:
    """They have no names here, and a look at them would keep them alive."""
    one, two = Maker(2, 2), Maker(2, 2)
    assert (model_name(one), model_name(two)) == ("Maker", "Maker")
    seen = observed(lambda: [net(torch.ones(1, 2)).sum().item() for net in (one, two)])
    assert list(seen.ran) == ["Maker", "Maker #2"]


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DataParallel": DataParallel,
    "AveragedModel": AveragedModel,
    "compiled": lambda model: torch.compile(model),
    "a list": lambda model: nn.ModuleList([model, nn.Tanh()]),
    "a dict": lambda model: nn.ModuleDict({"a": model}),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_what_is_around_a_model_gives_it_no_name(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = Agent()
    outer = wrap(model)
    assert (model_name(model), model_name(model.actor)) == ("Agent", "Agent.actor")
    if not isinstance(outer, (nn.ModuleList, nn.ModuleDict)):
        assert model_name(outer) == "Agent"


def test_odd_modules() -> None:
    class Unborn(nn.Module):
        def __init__(self) -> None:
            raise ValueError

    class Circle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.none = None
            self.register_module("gone", None)
            self.inner.outer = self

    unborn = Unborn.__new__(Unborn)
    circle = Circle()
    assert "Circle" in model_name(circle) and unborn is not None
    circle.inner._modules.clear()  # or the collector has more to do
