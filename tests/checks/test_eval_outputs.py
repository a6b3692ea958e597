"""HK003 on what a model returns in eval mode without gradients, the mode in which it is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import swept, untouched
from torch import Tensor, nn

from hookcli import check
from hookcli.table import Finding, Report


class Fn(nn.Module):
    """A function of a linear layer's output, in eval mode only."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 8), nn.Linear(8, 3), function

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h if self.training else self.function(h))


class Padded(nn.Module):
    """Attention over items, the second of which is all padding."""

    def __init__(self, layer: nn.Module, padding: str) -> None:
        super().__init__()
        self.attention, self.padding = layer, padding

    def forward(self, x: Tensor) -> Tensor:
        pad = torch.zeros(x.shape[:2], dtype=torch.bool)
        pad[1, 0 if self.padding == "all" else 1 :] = True
        if isinstance(self.attention, nn.MultiheadAttention):
            y: Tensor = self.attention(x, x, x, key_padding_mask=pad, need_weights=False)[0]
            return y
        return self.attention(x, src_key_padding_mask=pad)


class Second(nn.Module):
    """Returns NaN from its second call in eval mode on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += not self.training
        return self.layer(x) * (float("nan") if self.calls > 1 else 1)


def finding(report: Report, which: str = "HK003") -> Finding:
    (one,) = [one for one in report.findings if one.check == which]
    return one


CASES = {
    "divided by a temperature of 0": (lambda h: torch.tanh(h) / torch.zeros(()), "24 of 24", "NaN"),
    "the logarithm of a ReLU": (lambda h: h.relu().log(), "24 of 24", "NaN"),
    "the root of a negative number": (lambda h: -(h.abs().sqrt() ** 3) + (-h.abs() - 1).sqrt(), "24 of 24", "NaN"),
    "an overflow": (lambda h: h.abs().add(1).mul(1e30).pow(2), "24 of 24", None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_finite_in_eval_mode_alone_is_found(case: str) -> None:
    function, count, kind = CASES[case]
    model, x = Fn(function), torch.randn(8, 6)
    with untouched(model):
        report = check(model, x, ops="functions")
    one = finding(report)
    assert one.message.startswith("in eval mode without gradients: ")
    assert one.fqn.startswith(":") and one.file == "tests/checks/test_eval_outputs.py"
    plain = finding(check(model, x))
    assert plain.fqn == "" and f"between first and last, which received it: {count}" in plain.message
    assert kind is None or kind in plain.message


@pytest.mark.parametrize("function", [torch.tanh, lambda h: h * 0, lambda h: h.masked_fill(h < 0, -torch.inf).exp()])
def test_finite_outputs_pass(function: Callable[[Tensor], Tensor]) -> None:
    assert not [one for one in check(Fn(function), torch.randn(8, 6)).findings if one.check == "HK003"]


@pytest.mark.parametrize("layer", ["MultiheadAttention", "TransformerEncoderLayer"])
@pytest.mark.parametrize("padding", ["all", "some"])
@pytest.mark.parametrize("training", [True, False])
def test_rows_that_see_no_key_are_nan_on_the_fused_path_alone(layer: str, padding: str, training: bool) -> None:
    model = Padded(getattr(nn, layer)(8, 2, batch_first=True), padding).train(training)
    x = torch.randn(4, 5, 8)
    with torch.no_grad():
        wrong = int(model.eval()(x).isnan().sum())
    assert bool(wrong) == (padding == "all"), "PyTorch does otherwise"
    with untouched(model.train(training)):
        report = check(model, x)
    messages = [one.message for one in report.findings if one.check == "HK003"]
    expected = f"in eval mode without gradients: {wrong} of 160 values of its output are NaN; without PyTorch's "
    expected += "fused attention path they are finite"
    assert [message.startswith(expected) for message in messages] == [True] * bool(wrong), messages


def test_a_second_run_that_returns_nan_is_named() -> None:
    report = check(Second(), torch.randn(4, 6))
    assert "a second run on the same batch gives a different result (NaN)" in finding(report, "HK029").message
    assert finding(report).message == "in eval mode without gradients: 12 of 12 values of its output are NaN"


class Complex(nn.Module):
    """A layer's output as complex numbers, times a factor in one of the modes."""

    def __init__(self, factor: complex, training: bool) -> None:
        super().__init__()
        self.first, self.factor, self.when = nn.Linear(6, 8), factor, training

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).to(torch.complex64)
        return h * self.factor if self.training == self.when else h


@pytest.mark.parametrize("factor", [complex("nan"), swept(complex("-inf")), swept(complex(0, float("inf")))])
@pytest.mark.parametrize("training", [True, False])
def test_complex_outputs_that_are_not_finite_are_found(factor: complex, training: bool) -> None:
    report = check(Complex(factor, training), torch.randn(4, 6))
    one = finding(report)
    assert "32 of 32 values of its output are" in one.message
    assert one.message.startswith("in eval mode without gradients: ") != training
