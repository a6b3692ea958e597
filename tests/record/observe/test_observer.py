"""Hooks change nothing: outputs, gradients, buffers and random state are the same bits; and they see the truth."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from record.observe.observed_models import PROBES, WIDTH, Residual, assert_grads_match, run
from support import equal, hooks_on
from torch import Tensor, nn

from hookcli.record.watch import watch


class Branches(nn.Module):
    """Two consumers of one tensor; returns a child's output that it also uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.keep = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        second = self.b(torch.stack([first, x]).sum(0))
        return self.keep(second) + first * 0.5


class Reshaped(nn.Module):
    """Returns a view, on which an in-place operation follows."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        y = self.flat(x * 1.0)
        y.mul_(2)
        return y


class Twice(nn.Module):
    """One module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.tanh(self.mix(x)))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "relu": lambda: nn.ReLU(inplace=True),
    "relu6": lambda: nn.ReLU6(),
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "dropout": lambda: nn.Dropout(0.5),
    "dropout_": lambda: nn.Dropout(0.5, inplace=True),
    "identity": nn.Identity,
    "residual": lambda: Residual(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)),
    "branches": Branches,
    "reshaped": Reshaped,
    "twice": Twice,
    "instance": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2), nn.Flatten(), nn.SiLU(inplace=True)
    ),
}


@pytest.mark.sweep
@settings(max_examples=30)
@given(
    names=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=6),
    probe=st.sampled_from(sorted(PROBES)),
    train=st.booleans(),
    seed=st.integers(0, 100),
)
def test_hooks_change_nothing(names: list[str], probe: str, train: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(LAYERS[name]() for name in names)).train(train)
    x = torch.randn(4, WIDTH)
    make, grad = PROBES[probe]
    try:
        expected = run(copy.deepcopy(model), x, grad=grad)
    except RuntimeError as error:  # two in-place activations in a row can't be differentiated, hooks or not
        assume("modified by an inplace operation" not in str(error))
        raise
    with watch(model, [make()]) as seen:
        found = run(model, x, grad=grad)
    assert equal(expected, found)
    assert sum(hooks_on(model).values()) == 0
    assert seen.reports()[0].rows


@settings(max_examples=30)
@given(
    names=st.lists(st.sampled_from(sorted(set(LAYERS) - {"relu", "dropout_"})), min_size=1, max_size=5),
    of=st.sampled_from(["outputs", "inputs"]),
    seed=st.integers(0, 100),
)
def test_gradients_of_outputs_and_inputs_are_right(names: list[str], of: str, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(LAYERS[name]() for name in names))
    assert_grads_match(model, torch.randn(4, WIDTH), of)
