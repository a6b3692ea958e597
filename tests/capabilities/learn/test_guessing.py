"""A loss that is no better than guessing, judged over the losses of all steps; and what a user sees of both checks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
from commands.test_run_nan import run
from support import swept

from hookcli.capabilities.learn.judging.guessing import guess_of
from hookcli.capabilities.learn.judging.loss_checks import NoBetterThanGuessing
from hookcli.capabilities.learn.lines import Learning, Untrained
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

LN_10 = math.log(10)


def said(losses: Mapping[int, float], classes: int = 10, items: int = 64) -> str:
    lines = {Learning.kind: [Learning("Net", 0, classes=classes, items=items)] if classes else [], Untrained.kind: []}
    measured = Measurements(losses=LossCourse.of(losses), every_loss=losses, lines=lines)
    return "".join(one.message for one in NoBetterThanGuessing().judge(measured))


def flat(level: float, steps: int = 60) -> dict[int, float]:
    return {step: level + 0.05 * (step % 4 - 1.5) for step in range(steps)}


def test_a_loss_that_stays_where_guessing_is() -> None:
    text = "the last 16 losses have a mean of 2.400, no better than guessing among 10 classes (ln 10 = 2.303)"
    assert said(flat(2.4, steps=64)) == text
    assert said(flat(2.27, steps=64)) == text.replace("2.400, no", "2.270, hardly")


@pytest.mark.parametrize(
    ("losses", "classes", "items"),
    [
        (flat(0.85 * LN_10), 10, 64),
        (flat(0.95 * LN_10), 10, 64),  # little, but something is learned
        (flat(2.4, steps=49), 10, 64),  # too few steps
        (flat(2.4), 10, 40),  # too few choices
        (flat(2.4), 0, 0),  # no cross-entropy
        (flat(math.log(128)), 128, 128),  # each item of a batch is a class
        (flat(0.1), 1, 64),
        ({step: 2.4 if step < 50 else math.nan for step in range(60)}, 10, 64),  # which HK038 says
        ({step: 2.4 if step < 20 else 105.0 for step in range(60)}, 10, 64),  # it jumped, which HK044 says
        ({step: 2.4 - 0.02 * step for step in range(60)}, 10, 64),  # it learns
    ],
)
def test_others_are_not_accused(losses: dict[int, float], classes: int, items: int) -> None:
    assert not said(losses, classes, items)


@pytest.mark.parametrize(("recorded", "named"), [(40, False), (75, True)])
def test_a_loss_that_rises_after_the_last_recorded_step_may_be_another_one(recorded: int, named: bool) -> None:
    losses = {step: 0.3 if step < 60 else 2.4 for step in range(80)}
    lines = [Learning("Net", 0, classes=10, items=64), Learning("Net", recorded)]
    assert (guess_of(lines, losses) is not None) is named


TRAIN = """
import sys, torch
from torch import nn
import torch.nn.functional as F

fault = sys.argv[1]
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-6 if fault == "slow" else 0.2, momentum=0.9)
centers = 3 * torch.randn(4, 8)
for step in range(80):
    y = torch.randint(4, (64,))
    x = centers[y] + torch.randn(64, 8)
    if fault == "labels":
        y = torch.randint(4, (64,))
    if fault != "kept":
        optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
"""
KEPT = (
    "gradients are never cleared: the optimizer also took the gradients of all earlier steps, "
    "in each of 7 recorded steps"
)
FAULTS = {
    "none": "",
    "kept": KEPT,
    "slow": "the steps are too small (learning rate 1e-06)",
    "labels": "the last 20 losses have a mean of",
}


@pytest.mark.parametrize("fault", ["none", "labels", *map(swept, ("kept", "slow"))])
def test_the_first_line_says_it_with_and_without_check(fault: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    for check in ((), ("--check",)):
        ran = run(tmp_path, "run", *check, "--every", "10", "-o", "train.run.jsonl", "train.py", fault)
        _, first, *_ = ran.stderr.splitlines()
        expected = f"hookcli: Sequential: {FAULTS[fault]}" if fault != "none" else "hookcli: train.py: 80 steps"
        assert first.startswith(expected), ran.stderr
        assert ran.returncode == (fault != "none" and bool(check))
        shown = run(tmp_path, "show", "train.run.jsonl")
        assert (shown.stderr + shown.stdout).count(first) == 1
        (tmp_path / "train.run.jsonl").unlink()
    assert ("checks passed" in ran.stderr) is (fault == "none") is ("checks passed" in shown.stdout)
    assert ("HK056  error" in ran.stderr) is (fault == "kept") is ("HK056  error" in shown.stdout)
    assert fault == "kept" or ("HK057  warning" in ran.stderr) is (fault != "none")
    tells_apart = "`hookcli run --trial --probe inputs,activations train.py labels`"  # it has no cause
    assert (tells_apart in " ".join(ran.stderr.split())) is (fault == "labels")


@pytest.mark.parametrize("fault", ["labels", swept("none"), swept("slow")])
def test_the_next_command_shows_what_layers_receive_where_no_cause_is_known(fault: str, tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text(TRAIN)
    ran = run(tmp_path, "run", "--every", "10", "my train.py", fault)
    command = f"hookcli run --trial --probe inputs,activations 'my train.py' {fault}"
    assert (ran.stderr.splitlines()[-1] == f"Next: {command}") is (fault == "labels"), ran.stderr
    again = run(tmp_path, *shlex.split(command)[1:])
    assert again.returncode == 0
    if fault == "labels":
        assert again.stderr.splitlines()[-1] == "Next: hookcli show --probe inputs 'my train-2.run.jsonl'"
