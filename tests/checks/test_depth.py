"""Where gradients begin to vanish or explode."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hookcli.checks.depth import ExplodingGradients, VanishingGradients
from hookcli.checks.measurements import Measurements
from hookcli.table import Report, Row, TensorStats


def rows(norms: Sequence[float]) -> list[Row]:
    """Gradients of weights 0, 1, ... with these norms, the loss's first."""
    return [
        Row({"kind": "parameter", "fqn": str(n), "shape": [2, 2]}, TensorStats(4, l2=norm))
        for n, norm in enumerate(norms)
    ]


@pytest.mark.parametrize(
    ("norms", "where", "said"),
    [
        ((1, 1, 1, 1e-9, 1e-9, 1e-9, 1e-9, 1e-8), "3", "from here to the input gradients stay below"),
        ((1, 1e-9, 1, 1, 1e-9, 1e-9, 1e-9, 1e-9), "4", "from here to the input gradients stay below"),
        ((1, 1, 1, 1, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 0.5), "4", "from here to 10 gradients stay below"),
        ((1, 1, 1, 1, 1, 1, 1e9, 1e9), "6", "from here to the input gradients stay above"),
        ((1, 1, 1, 1, 1, 1, 1, 1, 1, 1e9, 1e9, 1), "9", "from here to 10 gradients stay above"),
    ],
)
def test_the_weights_between_which_gradients_stay_beyond(norms: Sequence[float], where: str, said: str) -> None:
    inventory, grads = Report("inventory", "m", (), rows([1.0] * len(norms))), Report("grads", "m", (), rows(norms))
    measured = Measurements(inventory=inventory, grads=grads)
    check = VanishingGradients() if min(norms) < 1e-3 else ExplodingGradients()
    (found,) = check.judge(measured)
    assert found.fqn == where and found.message.startswith(said)
