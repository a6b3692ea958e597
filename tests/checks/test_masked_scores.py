"""Infinities that a mask makes and a softmax takes up are not a fault; a query that sees no key is the softmax's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import each_once, swept, untouched
from torch import Tensor, nn

from hookcli import capture, check
from hookcli.table.marks import with_verdict


class Fill(nn.Module):
    """Masks scores: each query sees those before it, and the `hidden` queries nothing."""

    def __init__(self, value: float, hidden: tuple[int, ...], how: str) -> None:
        super().__init__()
        self.value, self.hidden, self.how = value, hidden, how

    def forward(self, scores: Tensor) -> Tensor:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        for query in self.hidden:
            mask[query] = True
        if self.how == "in place":
            return scores.masked_fill_(mask, self.value)
        if self.how == "where":
            return torch.where(mask, self.value, scores).contiguous().view(scores.shape)
        if self.how == "added":
            return scores + torch.zeros(mask.shape).masked_fill(mask, self.value)
        return scores.masked_fill(mask, self.value)


class Attention(nn.Module):
    """Attention whose mask is a module, and whose softmax is one or a function."""

    def __init__(self, value: float, hidden: tuple[int, ...] = (), how: str = "", softmax: Any = None) -> None:
        super().__init__()
        self.qkv, self.fill = nn.Linear(8, 24), Fill(value, hidden, how)
        self.softmax = softmax or (lambda x: torch.softmax(x, -1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        y: Tensor = self.softmax(self.fill(q @ k.mT)) @ v
        return y


SOFTMAX: list[Callable[[], Any]] = [lambda: None, lambda: nn.Softmax(-1), lambda: lambda x: x.log_softmax(-1).exp()]


@pytest.mark.parametrize("ops", [None, "functions"])
@pytest.mark.parametrize("how", ["", "in place", swept("where"), swept("added")])
@pytest.mark.parametrize("softmax", [SOFTMAX[0], *map(swept, SOFTMAX[1:])])
def test_infinities_that_are_meant(ops: str | None, how: str, softmax: Callable[[], Any]) -> None:
    model, x = Attention(-math.inf, how=how, softmax=softmax()), torch.randn(4, 5, 8)
    assert model(x).isfinite().all(), "the case is wrong"
    with untouched(model):
        report = check(model, x, ops=ops)
    found = [one for one in report.findings if one.check == "HK003"]
    if softmax is SOFTMAX[2]:  # what log_softmax returns there is -inf, too
        found = [one for one in found if "log_softmax" not in one.fqn]
    assert not found
    if softmax is not SOFTMAX[2]:
        table = with_verdict(capture(model, x, probes="activations", ops=ops))
        assert "Inf" not in str(table.totals.get("verdict"))


@pytest.mark.parametrize(("hidden", "says"), [swept((2,), "query 2 sees no key"), ((1, 3), "queries 1, 3 see no key")])
@pytest.mark.parametrize("how", ["", "where", "added"])
def test_queries_that_see_no_key(hidden: tuple[int, ...], says: str, how: str) -> None:
    model, x = Attention(-math.inf, hidden, how), torch.randn(4, 5, 8)
    one = next(one for one in check(model, x, ops="functions").findings if one.check == "HK003")
    assert one.fqn == ":softmax_1" and one.file == "tests/checks/test_masked_scores.py"
    assert one.message.startswith(f"{4 * 5 * len(hidden)} of 100 values of its output are NaN: {says}")
    assert "key" in one.remedy
    verdict = with_verdict(capture(model, x, probes="activations", ops="functions")).totals["verdict"]
    assert str(verdict).startswith(f":softmax_1: {4 * 5 * len(hidden)} NaN: {says}")


@pytest.mark.parametrize(("ops", "value"), each_once([None, "functions"], [math.inf, math.nan]))
def test_other_values_are_the_fault_of_what_makes_them(ops: str | None, value: float) -> None:
    one = next(one for one in check(Attention(value), torch.randn(4, 5, 8), ops=ops).findings if one.check == "HK003")
    assert one.fqn == ("fill:masked_fill_1" if ops else "fill")


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


@pytest.mark.parametrize(
    ("ops", "then"), each_once([None, "functions"], [lambda: nn.Linear(5, 5), Mean, lambda: nn.BatchNorm1d(5)])
)
def test_infinities_that_do_harm_are_found(then: Callable[[], Any], ops: str | None) -> None:
    model, x = nn.Sequential(nn.Linear(8, 5), Fill(-math.inf, (), ""), then()), torch.randn(5, 8)
    assert not model(x).isfinite().all(), "the case is wrong"
    one = next(one for one in check(model, x, ops=ops).findings if one.check == "HK003")
    assert one.fqn == ("1:masked_fill_1" if ops else "")
    said = "10 of 25 values of its output are infinite" if ops else "begins between 1 and 2, which received it"
    assert one.message.startswith(said)


class Scores(nn.Module):
    """Returns scores: of some actions, or of none in one row, or of a computation that may overflow."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.head, self.how = nn.Linear(8, 5), how
        self.register_buffer("hidden", torch.tensor([0.0, -math.inf, 0.0, 0.0, -math.inf]))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x)
        return {
            "masked_fill": lambda: y.masked_fill(y < y.amin(-1, keepdim=True) + 1e-6, -math.inf),
            "where": lambda: torch.where(torch.arange(5) % 2 == 0, y, -math.inf) / 0.7,
            "in place": lambda: y.clone().index_fill_(-1, torch.tensor([1]), -math.inf),
            "an index": lambda: _set(y.clone()),
            "a buffer": lambda: y + self.hidden,
            "scatter": lambda: torch.full_like(y, -math.inf).scatter(-1, y.topk(2).indices, y.topk(2).values),
            "normalized": lambda: torch.where(torch.arange(5) > 1, y, -math.inf).log_softmax(-1),
            "cast": lambda: y.masked_fill(torch.arange(5) > 2, -math.inf).double()[:, :4],
            "nothing": lambda: y,
            "log": lambda: y.relu().log(),
            "log, scaled": lambda: y.relu().log() * 2 + 1,
            "overflow": lambda: y * -1e38 * 1e10,
            "a whole row": lambda: y.masked_fill(torch.tensor([[False], [True], [False], [False]]), -math.inf),
            "+inf": lambda: y.masked_fill(torch.arange(5) > 2, math.inf),
        }[self.how]()


def _set(y: Tensor) -> Tensor:
    y[:, 1] = -math.inf
    return y


@pytest.mark.parametrize("ops", [swept(None), "functions"])
@pytest.mark.parametrize(
    ("how", "meant"),
    [
        (how, True) if how in ("masked_fill", "where", "normalized") else swept(how, True)
        for how in ("masked_fill", "where", "in place", "an index", "a buffer", "scatter", "normalized", "cast")
    ]
    + [(how, False) for how in ("log", "log, scaled", "overflow", "a whole row", "+inf")],
)
def test_scores_that_a_model_returns(how: str, meant: bool, ops: str | None) -> None:
    model, x = Scores(how), torch.randn(4, 8)
    assert model(x).isinf().any(), "the case is wrong"
    with untouched(model):
        found = [one for one in check(model, x, ops=ops).findings if one.check == "HK003"]
    assert (not found) is meant
    verdict = with_verdict(capture(model, x, probes="activations", ops=ops)).totals.get("verdict")
    assert ("Inf" not in str(verdict)) is meant
