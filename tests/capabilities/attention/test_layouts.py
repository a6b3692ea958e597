"""Heads are found in other orders of dimensions, products and masks; NaN, infinities and empty tensors are said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capabilities.attention.nets import GPT, figures
from capabilities.attention.test_probe import measured, require_same
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from hookcli.cli import main

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
OUTPUT = ("output_rms", "output_share")


class Head(nn.Module):
    """Attention by this function, with 4 heads."""

    def __init__(self, attend: Attend, heads: int = 4) -> None:
        super().__init__()
        self.attend, self.num_heads, self.softmax = attend, heads, nn.Softmax(-1)

    def forward(self, *given: Tensor) -> Tensor:
        return self.attend(*given)


class BySoftmaxLayer(Head):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(self.softmax(scores(q, k)), v)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1) @ v


fused = F.scaled_dot_product_attention
torch.manual_seed(0)
Q, K, V = (torch.randn(2, 4, 7, 8) for _ in range(3))
SEES = torch.ones(7, 7, dtype=torch.bool)
LOGITS = scores(Q.double(), K.double())


TRANSPOSED = Head(lambda q, k, v: v.mT @ scores(q, k).softmax(-1).mT)


def by_einsum(equation: str) -> Attend:
    return lambda q, k, v: torch.einsum(equation, scores(q, k).softmax(-1), v)


@pytest.mark.parametrize(
    ("model", "arrange"),
    [
        (Head(by_hand), lambda x: x.transpose(0, 1)),
        (Head(by_hand), lambda x: x.flatten(0, 1)),
        (BySoftmaxLayer(by_hand), lambda x: x.flatten(0, 1)),
        (Head(fused), lambda x: x.flatten(0, 1)),
        (Head(by_hand), lambda x: x.unflatten(1, (2, 2))),
        (Head(fused), lambda x: x.unflatten(1, (2, 2))),
        (Head(by_hand), lambda x: x.transpose(0, 1)[None]),
        (Head(fused), lambda x: x.transpose(0, 1)[None]),
        (Head(by_einsum("...ij,...jd->...id")), lambda x: x),
        (Head(by_einsum("bhij, bhjd -> ibhd")), lambda x: x),
        (Head(by_einsum("...hij,...hjd->...ihd")), lambda x: x.transpose(0, 1)),
        (Head(lambda q, k, v: torch.matmul(input=scores(q, k).softmax(-1), other=v)), lambda x: x),
        (TRANSPOSED, lambda x: x),
        (Head(lambda q, k, v: torch.bmm(scores(q, k).softmax(-1).flatten(0, 1), v.flatten(0, 1))), lambda x: x),
        (Head(fused, heads=2), lambda x: x),
    ],
)
def test_orders_of_dimensions(model: nn.Module, arrange: Callable[[Tensor], Tensor]) -> None:
    without = OUTPUT if model is TRANSPOSED else ()
    require_same(measured(model, *map(arrange, (Q, K, V))), "", figures(LOGITS, SEES, V), without)


def test_another_order_is_not_measured_and_said() -> None:
    q, k, v = (x.transpose(1, 2) for x in (Q, K, V))
    weights: Attend = lambda q, k, v: torch.einsum("bqhd,bkhd->bqhk", q, k).softmax(-1)  # noqa: E731
    report = measured(Head(lambda q, k, v: torch.einsum("bqhk,bkhd->bqhd", weights(q, k, v), v)), q, k, v)
    assert not report.rows and "einsum bqhk,bkhd->bqhd: queries are not last but one" in report.skipped[0].reason


@pytest.mark.parametrize(
    ("q", "k", "sees", "given"),
    [
        (Q, K, SEES, {"scale": 0.0}),
        (Q[:, :, -3:], K, SEES[-3:].tril(4), {"attn_mask": causal_lower_right(3, 7)}),
        (Q[:, :, -3:], K, SEES[-3:].tril(), {"attn_mask": causal_upper_left(3, 7)}),
        (Q[:1], K, SEES, {}),
        (Q, K[:1], SEES, {}),
    ],
)
def test_scales_masks_and_one_query_for_all_items(q: Any, k: Any, sees: Any, given: Any) -> None:
    values = V[: len(k)].expand(2, -1, -1, -1)
    logits = scores(q.double(), k.double()) * (given.get("scale", 1) or 0)
    oracle = figures(logits, sees, values)
    for of_head in oracle if q.shape[2] < 7 else ():
        del of_head["self_share"], of_head["distance"]
    without = ("nearest", "similarity") if "scale" in given else ()  # even weights have none
    require_same(measured(Head(lambda q, k, v: fused(q, k, v, **given)), q, k, V[: len(k)]), "", oracle, without)


class BothWays(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        to, back = scores(a, b).softmax(-1), scores(b, a).softmax(-1)
        return to @ b, back @ a


def test_two_softmaxes_before_their_products_and_one_that_overwrites_its_logits() -> None:
    report = measured(BothWays(), Q, K[:, :, :5])
    everything = [scores(x.double(), y.double()) for x, y in ((Q, K[:, :, :5]), (K[:, :, :5], Q))]
    assert [row["queries"] for row in report.rows] == [2 * (7 + 5)] * 4
    assert [row["max_logit"] for row in report.rows] == pytest.approx(
        [max(float(x[:, head].max()) for x in everything) for head in range(4)], rel=1e-5
    )
    report = measured(Head(lambda q, k, v: torch.softmax(x := scores(q, k), -1, out=x) @ v), Q, K, V)
    assert not report.rows and "its softmax overwrites the logits" in report.skipped[0].reason


def test_a_learned_sink_is_a_key_without_a_value() -> None:
    sinks = torch.randn(1, 4, 1, 1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = torch.cat([scores(q, k), sinks.expand(2, -1, 7, -1)], -1)
        return logits.softmax(-1)[..., :-1] @ v

    logits = torch.cat([LOGITS, sinks.double().expand(2, -1, 7, -1)], -1)
    oracle = figures(logits, torch.ones(7, 8, dtype=torch.bool), F.pad(V, (0, 0, 0, 1)))
    for of_head in oracle:
        del of_head["self_share"], of_head["distance"]
    require_same(measured(Head(attend), Q, K, V), "", oracle)


@pytest.mark.parametrize("attend", [by_hand, fused])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_said_first_and_no_head_is_called_dead(attend: Attend, value: float) -> None:
    for place in range(3):
        given = [x.clone() for x in (Q, K, V)]
        given[place][0, 1, 3, 2] = value
        report = measured(Head(attend), *given)
        assert report.totals["verdict"] == "1 of 4 heads is not finite (NaN or Inf): (model) head 1"
        assert [row["head"] for row in report.rows] == [0, 2, 3]
        assert all(0.5 < row["output_share"] < 2 for row in report.rows)


@pytest.mark.parametrize("attend", [by_hand, fused])
def test_empty_tensors(attend: Attend) -> None:
    for q, k, v in ((Q[:0], K[:0], V[:0]), (Q, K[:, :, :0], V[:, :, :0]), (Q[:, :, :0], K, V)):
        report = measured(Head(attend), q, k, v)
        assert report.totals["nothing"] == "attention was seen, but there is nothing to measure in it"


def test_heads_are_not_alike_because_all_tokens_are_0_or_1(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text("from capabilities.attention.nets import GPT as net\n")
    assert main(["attention", str(tmp_path / "net.py:net"), "--input", "2x40:int64"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "none of 8 heads" in text and "all tokens were 0 or 1 (--data gives real ones), so heads" in text
    assert "like" not in measured(GPT(), torch.arange(20)[None]).totals["verdict"].partition("like another")[2]
