"""States of which a model takes nothing, as load_state_dict(strict=False) does not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import nn
from torch.nn import functional as F  # noqa: N812

State = dict[str, Any]
Load = Callable[[nn.Module, State], Any]
NONE = "none of the 4 names in the state of load_state_dict(strict=False) is one of "


def prefixed(state: State, prefix: str) -> State:
    return {f"{prefix}{name}": value for name, value in state.items()}


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def program(load: Load) -> Callable[[], nn.Module]:
    def run() -> nn.Module:
        torch.manual_seed(0)
        state = net().state_dict()
        model = net()
        load(model, state)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            x = torch.randn(16, 6)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
            optimizer.step()
        return model

    return run


def at_second(model: nn.Module, state: State) -> None:
    model.load_state_dict(prefixed(state, "module."), strict=False)
    model.load_state_dict(state)


def its_part(model: nn.Module, state: State) -> None:
    model.load_state_dict(prefixed(state, "model."), strict=False)
    model[0].load_state_dict({"weight": state["0.weight"]}, strict=False)  # type: ignore[index]


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (
            lambda model, state: model.load_state_dict(prefixed(state, "module."), strict=False),
            f"{NONE}Sequential's: it has module.0.weight, and not 0.weight",
        ),
        swept(
            lambda model, state: model.load_state_dict(strict=False, state_dict=prefixed(state, "net.")),
            f"{NONE}Sequential's: it has net.0.weight, and not 0.weight",
        ),
        (
            lambda model, state: model[0].load_state_dict(state, strict=False),
            f"{NONE}Linear's: it has 0.weight, and not weight",
        ),
        (lambda model, state: model.load_state_dict(state), ""),
        (lambda model, state: model.load_state_dict({"2.bias": state["2.bias"], "more": 1}, strict=False), ""),
        swept(lambda model, state: model.load_state_dict({}, strict=False), ""),
        (at_second, ""),
        (its_part, ""),
    ],
)
def test_a_state_of_which_nothing_is_taken(load: Load, said: str) -> None:
    assert all_faults(program(load)) == ([said] if said else [])


def test_the_method_is_afterwards_as_before() -> None:
    before = nn.Module.load_state_dict
    during: list[object] = []

    def load(model: nn.Module, state: State) -> None:
        during.append(nn.Module.load_state_dict)
        model.load_state_dict(state)

    all_faults(program(load))  # without hookcli, and then with it
    assert during[0] is before is nn.Module.load_state_dict
    assert during[1] is not before
