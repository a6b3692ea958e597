"""Infinities that a layer's products make, in one step of many and with a finite loss: an overflow is never meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn

from hookcli.table import Finding


class Scores(nn.Module):
    """Writes -inf into what its layer returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.arange(8) < 3
        return self.layer(x).where(~hidden, torch.full((8,), -torch.inf)) + 0


def wide(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.constant_(parameter, 3.0)
    return layer


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: wide(nn.Linear(8, 8)),
    "Conv1d": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), wide(nn.Conv1d(1, 1, 5, padding=2)), nn.Flatten()),
    "without a bias": lambda: wide(nn.Linear(8, 8, bias=False)),
}


def found(
    first: Callable[[], nn.Module], last: nn.Module, bad: range, dtype: torch.dtype = torch.float16
) -> list[Finding]:
    """HK003 in eight steps, in some of which the input is large, though finite."""

    def program() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(first(), last, nn.Linear(8, 1)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for step in range(8):
            optimizer.zero_grad()
            x = torch.rand(4, 8) * (2e4 if step in bad else 1)
            loss = model(x.to(dtype)).float().square().mean()
            assert loss.isfinite()
            loss.backward()
            optimizer.step()
        return model

    reports: Any = observed(program, check=True, every=1).recorded[-1].reports
    return [one for report in reports for one in report.findings if one.check == "HK003"]


BAD = (range(1), range(2, 6), range(3, 4), range(7, 8))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("layer", "bad"),
    [
        *(("Linear", BAD[0]), ("Linear", BAD[1]), ("Conv1d", BAD[2]), ("without a bias", BAD[3])),
        *(swept("Linear", bad) for bad in BAD[2:]),
        *(swept(layer, bad) for layer in ("Conv1d", "without a bias") for bad in BAD),
    ],
)
def test_an_overflow_in_a_layer_is_an_error_at_once(layer: str, bad: range) -> None:
    (finding,) = found(LAYERS[layer], nn.Tanh(), bad)
    assert finding.severity == "error" and finding.fqn.startswith("0") and "are infinite" in finding.message
    assert bad[0] == 7 or f"(step {bad[0]})" in finding.message


@pytest.mark.parametrize("layer", ["Linear", swept("Conv1d"), swept("without a bias")])
def test_what_fits_into_the_dtype_is_no_overflow(layer: str) -> None:
    assert found(LAYERS[layer], nn.Tanh(), range(2, 6), torch.float32) == []


def test_scores_that_a_program_hides_behind_a_layer_are_no_overflow() -> None:
    assert found(Scores, nn.Softmax(-1), range(0), torch.float32) == []
