"""The command that output ends with: it is about what was found, runs as it stands, and is absent if nothing was."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from commands.check_nets import Cli

from hookcli.checks.selection import known_checks
from hookcli.table.marks import RULES

MODELS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, bias=0.0):
        super().__init__()
        self.fc, self.act, self.out = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
        nn.init.constant_(self.fc.bias, bias)

    def forward(self, x):
        return self.out(self.act(self.fc(x)))


class Dead(Net):
    def __init__(self):
        super().__init__(-100.0)


class Log(Net):
    def forward(self, x):
        return self.out(torch.log(self.act(self.fc(x)) - 9))


class Rewritten(Net):
    def forward(self, x):
        return self.out(self.act(self.fc(x)) * 1.5)


def mean(y):
    return y.mean()
"""
IN = ("--input", "16x8")


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my nets").mkdir()
    (tmp_path / "my nets" / "nets.py").write_text(MODELS)


def net(name: str) -> str:
    return f"my nets/nets.py:{name}"


CASES = {
    ("activations", "Log"): ("check", "--seed 2 --input 16x8 --ops --eval", "HK003  error    :log_1"),
    ("activations", "Log", "--train"): ("check", "--seed 2 --input 16x8 --ops", "HK003  error    :log_1"),
    ("activations", "Log", "--ops"): ("explain", "HK003", "HK003 activation-not-finite"),
    ("activations", "Dead"): ("explain", "HK010", "HK010 dead-units"),
    ("inputs", "Log"): ("check", "--seed 2 --input 16x8 --ops --eval", "HK003  error    :log_1"),
    ("inputs", "Dead"): ("", "", ""),
    ("grads", "Log", "--loss", "my nets/nets.py:mean"): (
        "check",
        "--seed 2 --input 16x8 --loss 'my nets/nets.py:mean' --ops",
        "HK003  error    :log_1",
    ),
    ("grads", "Dead"): ("explain", "HK009", "HK009 zero-gradient"),
    ("check", "Log"): ("check", "--seed 2 --input 16x8 --ops", "HK003  error    :log_1"),
    ("check", "Dead"): ("activations", "--seed 2 --input 16x8 --train --sort -zeros", "all zero"),
    ("memory", "Net", "--fits", "2MiB", "--optimizer", "sgd", "--columns", "batch,peak", "--sort", "batch"): (
        "memory",
        r"--device cuda --optimizer sgd --seed 2 --input 16x8 --batch-size \d+",
        "1 MiB in backward of act",
    ),
    ("memory", "Net", "--fits", "9B"): ("", "", ""),
    **{(command, "Net"): ("", "", "") for command in ("shapes", "activations", "grads", "check", "memory", "flow")},
}


@pytest.mark.parametrize("typed", CASES, ids=" ".join)
def test_the_next_command_is_about_what_was_found_and_runs(cli: Cli, typed: tuple[str, ...]) -> None:
    command, name, *more = typed
    wanted, options, shows = CASES[typed]
    lines = cli(command, net(name), *IN, "--seed", "2", *more).out.splitlines()
    suggested = [line for line in lines if line.startswith("Next: ")]
    if not wanted:
        assert suggested == []
        return
    assert suggested == lines[-1:]
    spec = "" if wanted == "explain" else f"{shlex.quote(net(name))} "
    assert re.fullmatch(f"Next: hookcli {wanted} {re.escape(spec)}{options}", lines[-1]), lines[-1]
    again = cli(*shlex.split(lines[-1])[2:])
    assert again.code in (0, 1) and shows in again.out
    assert sum(line.startswith("Next: ") for line in again.out.splitlines()) <= 1


@pytest.mark.sweep
def test_a_comparison_leads_to_the_line_or_to_nothing(cli: Cli) -> None:
    old, new = (shlex.quote(net(name)) for name in ("Net", "Rewritten"))  # a side may have options
    *_, last = cli("diff", old, new, *IN).out.splitlines()
    assert last == f"Next: {shlex.join(['hookcli', 'diff', old, new, *IN, '--ops'])}"
    again = cli(*shlex.split(last)[2:]).out
    assert ":mul_1" in again.splitlines()[0] and "Next: " not in again
    for other in (old, f"{old} --dtype bfloat16"):  # nothing differs, or what was typed
        ran = cli("diff", old, other, *IN)
        assert ran.out and "Next: " not in ran.out


@pytest.mark.sweep
def test_commands_in_advice_run_as_they_stand_on_the_model_that_was_checked(cli: Cli) -> None:
    budgets = ("--max-params", "9", "--max-macs", "9", "--max-peak-memory", "9B", "--max-activation-memory", "9B")
    for name, more, named in (("Dead", (), {"activations"}), ("Net", budgets, {"shapes", "memory"})):
        (report,) = json.loads(cli("check", net(name), *IN, "--seed", "2", *more, "-f", "json").out)["reports"]
        texts = [finding[key] for finding in report["findings"] for key in ("remedy", "hint")]
        commands = {command for text in texts for command in re.findall("`(hookcli .*?)`", text)}
        assert {shlex.split(command)[1] for command in commands} == named
        for command in commands:
            again = cli(*shlex.split(command)[1:], "-f", "json")
            assert again.code == 0, again.err
            (same,) = json.loads(again.out)["reports"]
            assert (same["model"], same["meta"]["input"]) == (f"nets.py:{name}", "16x8")


def test_advice_of_checks_names_no_command_without_its_model() -> None:
    commands = [c for kind in known_checks() for c in re.findall("`(hookcli .*?)`", f"{kind.advice} {kind.means}")]
    assert len(commands) >= 8
    assert [command for command in commands if not {"MODEL", "SCRIPT"} & set(command.split())] == []


def test_explain_alone_lists_every_check(cli: Cli) -> None:
    listed = cli("explain").out.splitlines()
    assert listed[0].split(maxsplit=2) == ["HK001", "crash", "the model does not run on this input"]
    ids = [line.split()[0] for line in listed if line.startswith("HK")]
    assert len(ids) == len(set(ids)) > 30 and max(map(len, listed)) <= 100


def test_checks_that_explain_faults_exist() -> None:
    named = {check for rule in RULES for check in rule.checks.values()}
    assert named == {"HK003", "HK004", "HK009", "HK010", "HK012", "HK013"} <= {kind.id for kind in known_checks()}
