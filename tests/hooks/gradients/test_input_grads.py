"""Each user of a tensor has its own part of the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hooks.gradients.input_users import Fn, figures, of
from support import assert_stats, float64_stats, swept
from torch import Tensor, nn

from hookcli import capture
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.probes.grads import GradsProbe


@pytest.mark.usefixtures("way")
def test_each_user_of_a_tensor_has_its_own_part() -> None:
    """loss = sum(a(h) + 2 b(h) + h): h's gradient is the sum of the three."""
    torch.manual_seed(0)
    model = Fn(
        lambda self, x: self.a(h := self.l(x)) + 2 * self.b(h) + h,
        l=nn.Linear(3, 3),
        a=nn.Linear(3, 3),
        b=nn.Linear(3, 3),
    )
    x = torch.randn(5, 3)
    ones = torch.ones(5, 3)
    report = of("inputs", model, x)
    assert_stats(figures(report)["a", ""], float64_stats(ones @ model.a.weight.detach()))
    assert_stats(figures(report)["b", ""], float64_stats(2 * ones @ model.b.weight.detach()))
    whole = ones @ model.a.weight.detach() + 2 * ones @ model.b.weight.detach() + 1
    assert_stats(figures(report)["l", ""], float64_stats(whole @ model.l.weight.detach()))
    assert_stats(figures(of("outputs", model, x))["l", ""], float64_stats(whole))


@pytest.mark.usefixtures("way")
def test_what_a_module_broadcasts_is_summed_over() -> None:
    model = Fn(lambda self, x: self.add(x), add=Fn(lambda self, x: x + torch.ones(4, 3)))
    report = of("inputs", model, torch.randn(1, 3))
    assert_stats(figures(report)["add", ""], float64_stats(torch.full((1, 3), 4.0)))


@pytest.mark.usefixtures("way")
def test_one_tensor_given_three_times_has_one_gradient_and_stays_one() -> None:
    """PyTorch's attention asks whether query and key are the same object, and takes another path if so."""
    seen: list[bool] = []

    def attend(self: Any, q: Tensor, k: Tensor, *, v: list[Tensor]) -> Tensor:
        seen.append(q is k is v[0])
        return q + 2 * k + 3 * v[0]

    model = Fn(lambda self, x: self.attend(h := x * 1.0, h, v=[h]), attend=Fn(attend))
    report = of("inputs", model, torch.randn(2, 2))
    assert seen == [True]
    found = {path: stats for (fqn, path), stats in figures(report).items() if fqn == "attend"}
    assert found.keys() == {"[0]", "[1]", '["v"][0]'}
    for stats in found.values():
        assert_stats(stats, float64_stats(torch.full((2, 2), 6.0)))


@pytest.mark.parametrize("seed", [0, *map(swept, range(1, 5))])
@pytest.mark.parametrize("layer", ["encoder", "decoder"])
def test_stock_attention_computes_the_same_bits(layer: str, seed: int) -> None:
    torch.manual_seed(seed)
    if layer == "encoder":
        model: nn.Module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        inputs: tuple[Tensor, ...] = (torch.randn(2, 5, 8),)
    else:
        model = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        inputs = (torch.randn(2, 5, 8), torch.randn(2, 3, 8))
    outputs: list[Tensor] = []
    handle = model.register_forward_hook(lambda m, a, y: outputs.append(y.detach().clone()))
    model(*inputs)
    for probe in (GradsProbe("inputs"), GradsProbe("outputs"), GradsProbe("inputs", "module"), TraceProbe()):
        report = capture(model, inputs, [probe])[0]
        assert report.rows
    handle.remove()
    assert all(torch.equal(outputs[0], y) for y in outputs)
    assert "one tensor in several places" in {i.fqn: i.reason for i in report.skipped}["self_attn"]


@pytest.mark.usefixtures("way")
def test_a_tensor_that_is_given_three_times_by_the_caller_stays_one() -> None:
    seen: list[bool] = []
    model = Fn(lambda self, q, k, v: (seen.append(q is k is v), q * k + v)[1])
    x = torch.ones(2)
    for kind in ("inputs", "outputs", "parameters"):
        capture(
            Fn(lambda self, *a: self.m(*a) * self.s.weight.sum(), m=model, s=nn.Linear(1, 1)),
            (x, x, x),
            [GradsProbe(kind)],
        )  # type: ignore[arg-type]
    assert seen == [True] * 3
