"""The loss from which backward starts: the model's own, a key of its output, or a function; and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from support import untouched
from torch import Tensor, nn

import hookcli
from hookcli import capture
from hookcli.engine.lockstep import Side, compare
from hookcli.engine.step import Step
from hookcli.errors import UsageError
from hookcli.reporters.footer import run_line
from hookcli.table import Report


@dataclass
class Output:
    logits: Tensor
    loss: Any


class Named(NamedTuple):
    logits: Tensor
    loss: Any


class Losing(nn.Module):
    """Returns logits w * x, and as loss what `loss` makes of them: by default a tenth of their mean square."""

    def __init__(self, kind: Any = dict, loss: Any = lambda y: y.square().mean() / 10) -> None:
        super().__init__()
        self.kind, self.loss = kind, loss
        self.w = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Any:
        y = self.w * x
        return self.kind(logits=y, loss=self.loss(y))


X = torch.tensor([1.0, 3.0])
OWN = "the model's own loss"


def grad(report: Report) -> float:
    """The gradient of the one weight: the mean of one element."""
    (row,) = [row for row in report.rows if row.fqn == "w"]
    assert row.stats is not None
    return row.stats.mean


def huggingface(**items: Any) -> Any:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.SequenceClassifierOutput(**items)


KINDS = [dict, Output, Named, pytest.param(huggingface, marks=pytest.mark.xdist_group("timm and Transformers"))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_returns_its_loss_has_that_one(kind: Any) -> None:
    model = Losing(kind)
    with untouched(model):
        (report,) = capture(model, X, ["grads"])
    # d/dw mean((w x)^2) / 10 = w (1 + 9) / 10; of the sum of all outputs it were 4 more.
    assert grad(report) == pytest.approx(2.0) and report.meta["loss_value"] == pytest.approx(2.0)
    assert report.meta["loss"] == OWN and f"loss 2 ({OWN})" in run_line(report)


@pytest.mark.parametrize("kind", KINDS)
def test_without_labels_the_sum_is_differentiated_and_the_caption_says_why(kind: Any) -> None:
    (report,) = capture(Losing(kind, lambda y: None), X, ["grads"])
    assert grad(report) == pytest.approx(4.0) and "(sum; the output's loss is None)" in run_line(report)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda y: y.detach().sum(), "does not require grad"),
        (lambda y: y * 0, "is of shape 2"),
        (lambda y: 0.5, "is a float"),
    ],
)
def test_a_loss_that_cannot_be_differentiated_is_not_the_default(loss: Any, why: str) -> None:
    (report,) = capture(Losing(dict, loss), X, ["grads"])
    assert grad(report) == pytest.approx(4.0) and f"the output's loss {why}" in run_line(report)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Any:
        return {"losses": {"total": (5 * self.w * x).sum(), "parts": [(self.w * x).sum(), None]}}, {"loss": None}


@pytest.mark.parametrize(
    ("path", "expected"), [("0.losses.total", 20.0), ("0.losses.parts.0", 4.0), ('[0]["losses"]["parts"][0]', 4.0)]
)
def test_a_key_of_the_output(path: str, expected: float) -> None:
    (report,) = capture(Nested(), X, ["grads"], loss=path)
    assert grad(report) == expected and report.meta["loss"] == path


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("0.losses.totals", "unknown loss '0.losses.totals'; did you mean 0.losses.total"),
        ("1.loss", "loss 1.loss: it is None in the model's output"),
        ("0.losses", "the loss must be a tensor of one element, not a dict"),
    ],
)
def test_a_key_that_is_no_loss(path: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        capture(Nested(), X, ["grads"], loss=path)
    assert said in str(caught.value)


def test_every_probe_that_runs_backward_starts_from_it() -> None:
    reports = capture(Losing(), X, ["grads", "graph", "trace"])
    assert [report.meta["loss"] for report in reports] == [OWN] * 3
    checked = hookcli.check(Losing(), X)
    assert checked.meta["loss"] == OWN and checked.meta["loss_value"] == pytest.approx(2.0)
    unlabelled = hookcli.check(Losing(dict, lambda y: None), X)
    assert "projection of the output; the output's loss is None" in run_line(unlabelled)


def test_diff_compares_the_gradients_of_the_models_own_losses() -> None:
    a, b = Losing(), Losing(dict, lambda y: y.square().mean() / 5)
    report = compare(Side(a, (X,)), Side(b, (X,)), step=Step(backward=True))
    (row,) = [row for row in report.rows if row.fqn == "w" and row.get("kind") == "grad"]
    assert row["rel_l2"] == pytest.approx(1.0)  # gradients of 2 and 4; of the sum of outputs they were 6 and 8


@pytest.mark.parametrize(("rank", "said"), [(1, ", rank 1 shown"), ([0, 2], ", ranks 0, 2 shown"), (None, "")])
def test_the_line_of_a_run_on_several_processes_says_which_are_shown(rank: int | list[int] | None, said: str) -> None:
    report = Report("activations", "net", (), (), {"processes": 3, "parallel": "ddp", "rank": rank})
    assert run_line(report) == f"net · 3 processes (ddp){said}"
