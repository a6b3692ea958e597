"""Complex tensors: their statistics are those of the modulus, which reports say, and each number is one element."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookcli import capture
from hookcli.probes.parameters import ParametersProbe


class Spectral(nn.Module):
    """A complex weight between real ones, as Fourier layers have it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 3), 3 + 4j, dtype=dtype))
        self.mixed, self.out = nn.Identity(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.mixed(x.to(self.weight.dtype) @ self.weight).abs().float())
        return y


@pytest.mark.parametrize(("dtype", "size"), [(torch.complex64, 8), (torch.complex128, 16)])
def test_a_complex_number_is_one_parameter(dtype: torch.dtype, size: int) -> None:
    totals = capture(Spectral(dtype), torch.ones(5, 2)).totals
    assert totals["params"] == totals["trainable"] == 6 + 8
    assert totals["param_bytes"] == totals["grad_bytes"] == 6 * size + 8 * 4


@pytest.mark.parametrize(
    ("probe", "name", "mean"),
    [("activations", "mixed", 10.0), (ParametersProbe, "weight", 5.0), ("grads", "weight", None)],
)
def test_reports_say_that_statistics_are_those_of_the_modulus(probe: Any, name: str, mean: float | None) -> None:
    model, x = Spectral(torch.complex64), torch.ones(5, 2)
    report: Any = capture(model, x, probes=probe, loss="sum")
    assert report.meta["notes"] == [f"{name}: complex, with the statistics of the modulus |z|"]
    if mean is None:
        model(x).sum().backward()
        assert model.weight.grad is not None
        mean = model.weight.grad.abs().double().mean().item()
    assert math.isclose(report[name]["mean"], mean, rel_tol=1e-6)


def test_real_ones_say_nothing() -> None:
    assert "notes" not in capture(nn.Linear(2, 2), torch.ones(1, 2), probes="activations").meta
