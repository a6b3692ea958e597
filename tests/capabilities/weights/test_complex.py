"""Complex tensors at rest."""

from __future__ import annotations

import torch
from probes.test_complex import Spectral
from torch import nn

from hookcli.capabilities.weights.report import Wanted, WeightsReport, parameters_and_buffers


def test_weights_say_so() -> None:
    model = nn.ModuleList([Spectral(torch.complex64), Spectral(torch.complex128)])
    made = WeightsReport("m", [*parameters_and_buffers(model)], {}, Wanted().columns(model=True))
    made.measure(Wanted(), lambda tensor: lambda size: None)
    report = made.report
    assert report.meta["notes"] == ["0.weight and 1 more: complex, with the statistics of the modulus |z|"]
    assert report["0.weight"]["mean"] == report["1.weight"]["max"] == 5 and report["0.weight"]["bytes"] == 48
