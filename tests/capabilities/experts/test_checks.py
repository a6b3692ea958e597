"""Dead experts, a router with one choice, and dropped tokens: planted faults are found, routers as built are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.routed_models import NUMBER, WIDTH, Capacity, Dense, Inline, Listed
from support import each_once
from torch import Tensor, nn

import hookcli
from hookcli.capabilities.experts.routing import NO_ROUTER
from hookcli.cli import main
from hookcli.table import Report

IDS = ("HK048", "HK049", "HK050")


def judged(model: nn.Module, x: Tensor) -> dict[str, tuple[str, str]]:
    return of(hookcli.check(model, x, experts=True))


def of(report: Report) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.fqn, finding.message) for finding in report.findings if finding.check in IDS}


def part(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), layer)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 50, WIDTH)


def biased(layer: nn.Module, expert: int, bias: float) -> nn.Module:
    with torch.no_grad():
        layer.gate.bias[expert] = bias
    return part(layer)


@pytest.mark.parametrize(("bias", "make"), each_once([-torch.inf, -20.0], [Listed, Dense, Inline]))
def test_an_expert_that_a_bias_kills(make: Callable[[], nn.Module], bias: float, x: Tensor) -> None:
    assert judged(biased(make(), 2, bias), x) == {"HK048": ("1", "1 of 6 experts got none of 200 tokens: 2")}


def test_a_bias_that_the_probabilities_do_not_have(x: Tensor) -> None:
    """As DeepSeek-V3 balances experts: only the comparison of scores has it."""

    class Biased(Listed):
        def forward(self, x: Tensor) -> Tensor:
            scores = self.gate(x).sigmoid()
            bias = torch.zeros(NUMBER).index_fill(0, torch.tensor([4]), -10)
            chosen = (scores + bias).topk(self.k, dim=-1).indices
            mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
            return sum(mask[..., n : n + 1] * expert(x) for n, expert in enumerate(self.experts))  # type: ignore[return-value]

    assert judged(part(Biased()), x) == {"HK048": ("1", "1 of 6 experts got none of 200 tokens: 4")}


def test_a_router_that_has_one_choice(x: Tensor) -> None:
    found = judged(biased(Inline(), 1, 30.0), x)
    assert found["HK049"] == ("1", "100.0% of 200 tokens chose expert 1; the entropy is 0.0% of an even choice's")
    assert found["HK048"][1] == "5 of 6 experts got none of 200 tokens: 0, 2, 3, 4, 5" and len(found) == 2


def test_dropped_tokens(x: Tensor) -> None:
    """Of 400 choices each of 6 experts takes 20."""
    layer = Capacity(2, 20)
    assert judged(part(layer), x)["HK050"] == ("1", "70.0% of 400 choices were dropped")
    assert not judged(part(Capacity(2, 200)), x)


@pytest.mark.sweep
def test_routers_as_built_are_not_accused(x: Tensor) -> None:
    """Of 64 experts many get no token, since tokens are alike."""
    alike = x + 3 * torch.randn(WIDTH)
    for layer in (Listed(), Inline(), Capacity(2, 200), Dense(2, 32)):
        for tokens in (x, alike):
            assert not judged(part(layer), tokens)
    assert "got no token: layer 1:" in hookcli.capture(part(Listed(4, 64)), alike, ["experts"])[0].totals["verdict"]


def test_what_can_not_be_judged_is_said(x: Tensor) -> None:
    few = hookcli.check(part(Listed(1)), x[:1, :40], experts=True)
    assert ("1", "experts: 40 tokens are too few to judge: 76 are enough") in [(s.fqn, s.reason) for s in few.skipped]
    none = hookcli.check(nn.Linear(WIDTH, 2), x, experts=True)
    assert NO_ROUTER in [s.reason for s in none.skipped] and not of(none)
    unasked = hookcli.check(biased(Listed(), 2, -torch.inf), x)
    assert not of(unasked)


class OneByOne(Listed):
    """The largest score, which a softmax also takes, then the largest of the others, or of scores with noise."""

    def __init__(self, noise: float = 0) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        p = (scores - scores.max(-1, keepdim=True)[0]).exp()
        first = p.argmax(-1, keepdim=True)
        p = torch.softmax(scores, -1)
        if self.noise:
            scores = scores + self.noise * torch.randn(scores.shape, generator=torch.Generator().manual_seed(0))
        else:
            scores = scores.scatter(-1, first, -torch.inf)
        second = scores.max(dim=-1, keepdim=True).indices
        p.max(dim=-1)  # for its value
        mask = torch.zeros_like(p).scatter(-1, torch.cat([first, second], -1), 1.0) * p
        return sum(mask[..., n : n + 1] * expert(x) for n, expert in enumerate(self.experts))  # type: ignore[return-value]


def test_choices_of_one_after_another(x: Tensor) -> None:
    """As Phi-MoE makes them."""
    layer = OneByOne()
    layer_row, *experts = hookcli.capture(layer, x, ["experts"])[0].rows
    p = layer.gate(x).double().softmax(-1).flatten(0, 1)
    mask = torch.zeros_like(p).scatter(1, p.topk(2).indices, 1)
    assert layer_row["top_k"] == 2 and [row["tokens"] for row in experts] == mask.sum(0).tolist()
    weights = ((p * mask).sum(0) / mask.sum(0)).tolist()
    assert [row["router_weight"] for row in experts] == pytest.approx(weights, rel=1e-5)
    noisy = hookcli.capture(part(OneByOne(0.5)), x, ["experts"])[0]
    assert not noisy.rows and "differ for some of the tokens" in noisy.skipped[0].reason


def test_scores_that_are_not_a_number_come_first(x: Tensor) -> None:
    x[1, 2] = torch.nan
    verdict = hookcli.capture(part(Listed()), x, ["experts"])[0].totals["verdict"]
    assert verdict.startswith("NaN among the scores of layer 1. Every expert got tokens; expert ")


NET = """
from probes.routed_models import *
class Tokens(nn.Module):
    def __init__(self, number=NUMBER):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList(Listed(2, number) for _ in range(3))
        with torch.no_grad():
            self.layers[1].gate.bias[3] = -30
    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = x + layer(x)
        return x
"""


def test_the_command(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict comes first; the table has a row per layer, and with all depth one per expert, as JSON has."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    seeds = "[torch.Generator().manual_seed(n) for n in (0, 1)]"
    data = f"loader = [torch.randint(0, 100, (4, 30), generator=g) for g in {seeds}]"
    Path("data.py").write_text(f"import torch\n{data}\n")
    command = ("experts", "net.py:Tokens", "--data", "data.py:loader", "--batches", "2")
    lines = cli(*command).out.splitlines()
    assert lines[0] == "1 of 18 experts got no token: layers.1: 3" and all(len(line) <= 80 for line in lines)
    assert len([line for line in lines if line.startswith("layers.")]) == 3
    [named] = [line.split() for line in lines if line.startswith("layers.1")]
    assert named[:6] == ["layers.1", "Listed", "6", "2", "240", "1"]
    whole = cli(*command, "--depth", "all").out.splitlines()
    assert len([line for line in whole if line.startswith("layers.")]) == 3 * 7
    rows = json.loads(cli(*command, "-f", "json").out)["reports"][0]["rows"]
    assert [row["tokens"] for row in rows if "expert" not in row] == [240] * 3
    assert sum(row["tokens"] for row in rows if "expert" in row) == 240 * 2 * 3
    cli(*command, "-o", "a.json")
    assert cli("diff", "a.json", "a.json").out.startswith("Equal in every figure")
    drawn = cli("experts", "net.py:Tokens", "--input", "4x30:int64").out.splitlines()[0]
    assert drawn.startswith("All tokens were 0 or 1 (--data gives real ones): ")
    asked = cli("check", *command[1:], "--experts", "--select", "HK048")
    assert "HK048  warning  layers.1: 1 of 6 experts got none of 240 tokens: 3" in asked.out, asked.out + asked.err


def test_the_first_line_names_the_cause_before_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(DEAD)
    assert main(["check", str(tmp_path / "net.py:net"), "--input", "256x8", "--experts"]) == 1
    [first, *_] = capsys.readouterr().out.splitlines()
    dead = "1 of 4 experts got none of 256 tokens: 2"
    assert first == f"1 error, 2 warnings; worst: (model): {dead}; then experts.2: no gradient reached weight, bias"


DEAD = """
import torch
from torch import nn


class net(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        with torch.no_grad():
            self.router.bias[2] = -1e4

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(1, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            here = (chosen == number).any(-1)
            if here.any():
                y[here] = expert(x[here]) * weights[here]
        return y
"""
