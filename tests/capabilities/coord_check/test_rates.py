"""The best learning rate at each width against plain PyTorch, and the first line from handmade losses."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from capabilities.coord_check.trained import NETS
from support import require_clear_error
from torch.nn.functional import cross_entropy

from hookcli.capabilities.coord_check.rates import Best, best_rate, is_tie, verdict
from hookcli.sources import importpath

Cli = Callable[..., Any]
WIDTHS = ("--arg", "width=16,64,256")
DATA = ("--data", "nets.py:labelled", "--loss", "cross-entropy")
RATES = (1e-2, 3e-2, 1e-1, 3e-1)
TYPED = ",".join(map(str, RATES))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


def check(cli: Cli, net: str, *argv: str) -> dict[str, Any]:
    ran = cli("coord-check", f"nets.py:{net}", *WIDTHS, *DATA, *argv, "--format", "json", "-q")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out)["reports"][0])


def by_hand(net: str, width: int, seed: int, make: Callable[[Any], Any], steps: int) -> float:
    """The loss after the last step of a plain loop."""
    torch.manual_seed(seed)
    model = importpath.load_object(f"nets.py:{net}")(width)
    [(x, target)] = importpath.load_object("nets.py:labels")()
    optimizer = make(model)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), target).backward()
        optimizer.step()
    return float(cross_entropy(model(x), target).detach())


@pytest.mark.parametrize(
    ("net", "optimizer", "said"),
    [
        ("MLP", "adam", "moves from 0.1 at width=16 to 0.01 (the smallest tried) at width=256: it stops transferring"),
        ("mu", "nets.py:mu_adam", "stays 0.1 from width=16 to 256: it transfers"),
    ],
)
def test_losses_are_those_of_a_plain_loop_and_the_best_rate_moves_only_without_mup(
    cli: Cli, net: str, optimizer: str, said: str
) -> None:
    report = check(cli, net, "--optimizer", optimizer, "--lr", TYPED, "--seeds", "2")
    assert report["totals"]["verdict"].startswith(f"The best learning rate {said}")
    assert re.search(r" from (64|256) on$| transfers$", report["totals"]["verdict"])  # by the losses of two seeds
    assert report["totals"]["runs"] == 24
    of_mup = importpath.load_object("nets.py:mu_adam")
    for row in report["rows"]:
        means = {}
        for rate in RATES:

            def make(model: Any, rate: float = rate) -> Any:
                return torch.optim.Adam(model.parameters(), lr=rate) if net == "MLP" else of_mup(model, rate)

            means[rate] = fmean(by_hand(net, row["width"], seed, make, 10) for seed in range(2))
        assert [row[f"loss_{rate:g}"] for rate in RATES] == pytest.approx([*means.values()], rel=1e-6)
        assert row["best_rate"] == min(RATES, key=means.__getitem__)


def test_a_training_that_diverges_has_an_infinite_loss(cli: Cli) -> None:
    report = check(cli, "Blows", "--lr", "1e-3,1e-2", "--seeds", "1", "--steps", "3")
    assert [row["loss_0.001"] == "Infinity" for row in report["rows"]] == [False, True, True]
    assert report["rows"][1]["best_rate"] is None
    assert report["totals"]["verdict"].startswith("No learning rate of these lowers the loss at width=64, 256: ")


def test_the_table_has_a_column_for_each_rate_and_growth_names_the_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = cli("coord-check", "nets.py:MLP", *WIDTHS, *DATA, "--lr", TYPED, "--seeds", "1", "--steps", "1", "-q")
    assert any(line.split()[:1] == ["Width"] and line.split()[-4:] == TYPED.split(",") for line in ran.out.split("\n"))
    slopes = check(cli, "MLP", "--seeds", "2", "--match", "out")
    several = "--lr 0.0001,0.0003,0.001,0.003,0.01,0.03"
    assert slopes["meta"]["next"].startswith("hookcli coord-check nets.py:MLP ") and several in slopes["meta"]["next"]
    assert "--match" not in slopes["meta"]["next"]
    ran = cli(*slopes["meta"]["next"].split()[1:], "--steps", "1", "-q")
    assert ran.code == 0 and "learning rate" in ran.out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--lr", "1e-3,fast"), "--lr 1e-3,fast: give a number, or several, as 1e-4,1e-3,1e-2"),
        (("--lr", "nan"), "--lr nan: give a number"),
        (("--lr", "1e-3,1e-2", "--points"), "--points: no module is looked at with several learning rates"),
        (("--lr", "1e-3,1e-2", "--match", "out"), "--match: no module is looked at with several learning rates"),
        (("--lr", "1e-3,1e-2"), "several --lr need a loss to lower: give --loss"),
    ],
)
def test_mistakes(cli: Cli, argv: tuple[str, ...], said: str) -> None:
    require_clear_error(cli("coord-check", "nets.py:MLP", *WIDTHS, "--input", "4x8", *argv), said)


def test_a_tie_is_within_a_share_or_within_the_spread_of_the_seeds() -> None:
    assert is_tie([1.01, 1.02], [1.0, 1.0], 0.02) and not is_tie([1.1, 1.12], [1.0, 1.0], 0.02)
    assert is_tie([0.9, 1.4], [1.0, 1.0], 0.02)  # one seed is better, another one worse
    assert not is_tie([1.015, 1.5], [1.0, 1.0], 0.02)  # all are worse, one by less than the share
    assert not is_tie([1.1, 99.0], [1.0, 1.0], 0.02)  # all are worse, though by as much as they differ
    assert is_tie([1.01], [1.0], 0.02) and not is_tie([1.1], [1.0], 0.02)


def test_the_best_of_losses_and_those_as_good() -> None:
    losses = {0.1: [2.0, 2.2], 0.2: [1.0, 1.2], 0.4: [1.02, 1.2], 0.8: [math.inf, 1.0]}
    best = best_rate(64, losses, 2.1)
    assert (best.rate, [*best.alike]) == (0.2, [0.2, 0.4]) and best.losses[0.8] == math.inf and best.learns
    assert not best_rate(64, {0.1: [math.inf], 0.2: [math.inf]}, 2.1).learns


def of(alike: Mapping[int, list[float]], learns: bool = True) -> list[Best]:
    """Widths with four learning rates, and those that are as good as the first of each list."""
    made = []
    for width, rates in alike.items():
        losses = {rate: 0.5 if rate in rates else 1.0 for rate in (0.1, 0.2, 0.4, 0.8)}
        made.append(Best(width, losses, rates[0], rates, 2.0 if learns else 0.1))
    return made


@pytest.mark.parametrize(
    ("widths", "said"),
    [
        (
            of({16: [0.4], 32: [0.4, 0.2], 64: [0.2], 128: [0.2]}),
            "The best learning rate moves from 0.4 at width=16 to 0.2 at width=128: it stops transferring from 64 on",
        ),
        (
            of({16: [0.8], 32: [0.4], 64: [0.1]}),
            (
                "The best learning rate moves from 0.8 (the largest tried) at width=16 to 0.1 (the smallest tried) at "
                "width=64: it stops transferring from 32 on"
            ),
        ),
        (of({16: [0.4], 32: [0.2, 0.4]}), "The best learning rate stays 0.4 from width=16 to 32: it transfers"),
        (
            of({16: [0.8], 32: [0.8, 0.4]}),
            "The best learning rate is the largest of these, 0.8, from width=16 to 32: give larger ones to tell more",
        ),
        (
            of({16: [0.1, 0.2, 0.4], 32: [0.2]}),
            (
                "Too easy to tell: 3 of 4 learning rates are as good at width=16; give fewer --steps, real --data, or "
                "rates further apart"
            ),
        ),
        (
            of({16: [0.4], 32: [0.2], 64: [0.4]}),
            "No learning rate is best at every width, nor does the best one clearly move: give more --seeds",
        ),
        (
            of({16: [0.4], 32: [0.2]}, learns=False),
            "No learning rate of these lowers the loss at width=16, 32: give others, or more --steps",
        ),
    ],
)
def test_the_first_line(widths: list[Best], said: str) -> None:
    assert verdict(widths, "width") == said
