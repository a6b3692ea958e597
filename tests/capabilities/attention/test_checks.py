"""Collapsed and dead heads, sinks and large logits: planted faults are found, fresh models are not accused."""

from __future__ import annotations

import math

import pytest
import torch
from capabilities.attention.nets import GPT, HEADS, SIZE, TOKENS, plant
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hookcli
from hookcli.capabilities.attention.heads import NO_ATTENTION
from hookcli.table import INFO

IDS = ("HK045", "HK046", "HK047")


def judged(model: nn.Module, *inputs: Tensor) -> list[tuple[str, str, str]]:
    report = hookcli.check(model.eval(), *inputs, attention=True)
    return [(f.check, f.fqn, f.message) for f in report.findings if f.check in IDS]


class Given(nn.Module):
    """Attention over these logits, one matrix for each head, of as many values."""

    def __init__(self, *logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.stack(logits)[None])

    def forward(self, x: Tensor) -> Tensor:
        values = x.unflatten(-1, (self.logits.shape[1], -1)).transpose(1, 2)
        return F.softmax(self.logits, dim=-1) @ values


def some(number: int, scale: float = 1.0) -> Tensor:
    return torch.randn(16, 16, generator=torch.Generator().manual_seed(number)) * scale


def first(share: float) -> Tensor:
    """Logits that give the first of 16 keys this share."""
    return torch.zeros(16, 16).index_fill(1, torch.tensor([0]), math.log(15 * share / (1 - share)))


SHUFFLED = torch.eye(16)[torch.randperm(16, generator=torch.Generator().manual_seed(0))]


def at_offset(places: int, causal: bool = False) -> Tensor:
    """Logits that make each query look at the key so many places after it, or at the last one if there is none."""
    keys = (torch.arange(16) + places).clamp(0, 15)
    logits = F.one_hot(keys, 16).float() * 14
    return logits.masked_fill(torch.ones(16, 16).triu(1).bool(), -math.inf) if causal else logits


X = torch.randn(1, 16, 12, generator=torch.Generator().manual_seed(9))


def test_planted_faults_of_a_gpt() -> None:
    model = GPT()
    assert judged(model, TOKENS) == []
    plant(model)
    assert judged(model, TOKENS) == [("HK047", "blocks.1", "1 of 4 heads (3) has no output")]
    with torch.no_grad():
        model.blocks[0].qkv.weight[: 2 * HEADS * SIZE] *= 100
    found = judged(model, TOKENS)
    assert [(check, fqn) for check, fqn, _ in found] == [
        ("HK046", "blocks.0"),
        ("HK045", "blocks.0"),
        ("HK047", "blocks.1"),
    ]
    assert found[0][2].startswith("the largest logit is") and "all weight on one key" in found[1][2]


@pytest.mark.parametrize(
    ("logits", "found"),
    [
        ((some(0), some(1), some(2)), []),
        ((some(0), some(0), some(0) + 7), [("HK045", "all 3 heads have the same weights (cosine 1.0000 or more)")]),
        ((some(0), some(0), some(1)), []),
        ((some(0, 1e-4),) * 3, []),
        ((some(0), some(1), first(0.9995)), [("HK047", "1 of 3 heads (2) has all weight on the first token")]),
        (
            (some(0), first(0.95), first(0.95)),
            [("HK047", "2 of 3 heads rest on the first token (over 90% of the weight)")],
        ),
        (
            (some(0), some(1), SHUFFLED * 12 + 995),
            [
                ("HK046", "the largest logit is 1007, of head 2 (1 of 3 are beyond)"),
                ("HK045", "1 of 3 heads (2) has all weight on one key"),
            ],
        ),
        ((some(0), some(1), SHUFFLED * 12), [("HK045", "1 of 3 heads (2) has all weight on one key")]),
        ((some(0), some(1), at_offset(0)), []),
        ((some(0), some(1), at_offset(-1)), []),
        ((some(0), some(1), at_offset(-1, causal=True)), []),
        ((some(0), some(1), at_offset(2)), []),
        ((some(0), some(1), at_offset(-4)), []),
    ],
)
def test_heads_with_given_logits(logits: tuple[Tensor, ...], found: list[tuple[str, str]]) -> None:
    messages = [(check, message) for check, _, message in judged(Given(*logits), X)]
    assert [check for check, _ in messages] == [check for check, _ in found]
    assert all(message.startswith(text) for (_, message), (_, text) in zip(messages, found, strict=True))


def test_a_sink_is_said_and_no_fault() -> None:
    report = hookcli.check(Given(some(0), some(1), first(0.95)).eval(), X, attention=True)
    assert [f.severity for f in report.findings if f.check == "HK047"] == [INFO]


def test_what_can_not_be_judged_is_said() -> None:
    few = hookcli.check(Given(torch.zeros(4, 4), torch.eye(4)).eval(), torch.randn(1, 4, 4), attention=True)
    assert "attention: 4 queries are too few to judge: 8 are enough" in [s.reason for s in few.skipped]
    [report] = hookcli.capture(
        Given(torch.eye(4) * 12, torch.eye(4)[[2, 0, 3, 1]] * 12), X[:, :4, :4], probes="attention"
    )
    assert "4 queries are too few to compare heads: 8 are enough" in report.totals["verdict"]
    assert report.totals["verdict"].startswith("none of 2 heads is dead; ") and "note" not in report.rows[0].values
    none = hookcli.check(nn.Linear(4, 2), torch.randn(2, 4), attention=True)
    assert NO_ATTENTION in [s.reason for s in none.skipped]
    assert not [f for f in hookcli.check(Given(first(0.9999), some(1)).eval(), X).findings if f.check in IDS]
