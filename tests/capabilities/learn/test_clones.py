"""Layers whose units have the same weights, and layers that only begin so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.weights.clones import has_clones

STEPS = 6
SAID = "have the same weights"


def net(hidden: float | None, head: float | None, *, conv: bool = False) -> nn.Sequential:
    """A model whose layers begin as one number, or at random."""
    first = nn.Conv1d(1, 8, 6) if conv else nn.Linear(6, 8)
    model = nn.Sequential(nn.Unflatten(1, (1, 6)) if conv else nn.Identity(), first, nn.Flatten(), nn.Linear(8, 3))
    for value, layer in ((hidden, first), (head, model[3])):
        for p in layer.parameters() if value is not None else ():
            nn.init.constant_(p, value)
    return model


def adapted() -> nn.Sequential:
    """The second of two layers begins at zero, and the first one at random: a low-rank adapter."""
    model = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 3))
    nn.init.zeros_(model[1].weight)
    return model


def trained(model: nn.Module) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("make", "units"),
    [
        (lambda: net(0.1, 0.1), "all 8 units of 1 have the same weights, in each of 6 recorded steps"),
        swept(lambda: net(0.1, 0.1, conv=True), "all 8 units of 1 have the same weights"),
        (lambda: net(None, 0.0), ""),
        swept(lambda: net(0.1, None), ""),  # the head tells the units apart
        (adapted, ""),
        swept(lambda: net(0.0, 0.0), ""),  # which does not move
    ],
)
def test_units_that_no_gradient_tells_apart(make: Callable[[], nn.Module], units: str) -> None:
    made: list[nn.Module] = []

    def program() -> nn.Module:
        made.append(trained(make()))
        return made[0]

    said = [text for text in all_faults(program) if SAID in text]
    assert len(said) == bool(units) and all(text.startswith(units) for text in said)
    rows = made[-1][1].weight if units else None  # type: ignore[index]
    assert rows is None or len({tuple(row.flatten().tolist()) for row in rows}) == 1


@pytest.mark.parametrize(("changed", "expected"), [((), True), ((1,), False), ((7,), False)])
def test_one_unit_that_differs_is_seen(changed: tuple[int, ...], expected: bool) -> None:
    weight = torch.ones(8, 3)
    weight[list(changed), 2] = 2.0
    assert has_clones(weight) is expected


def test_no_weight_of_a_parametrization_is_computed() -> None:
    """spectral_norm changes its estimate whenever someone asks for the weight."""
    normed = nn.utils.parametrizations.spectral_norm
    all_faults(lambda: trained(nn.Sequential(normed(nn.Linear(6, 8)), nn.Linear(8, 3))))  # as without hookcli
