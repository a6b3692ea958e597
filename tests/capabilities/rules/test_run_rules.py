"""`hookcli run --rule`, as users meet it: in the terminal, the record, the exit code, and while the script runs."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import forks
import paged
import pytest
import torch
from commands.growing import until
from commands.test_run_nan import run
from commands.trained import PAIR
from record.launching.support import ENV
from records import HEADER, recorded_step, save
from support import swept
from torch import nn

import hookcli
from hookcli.capabilities.rules.lines import RuleFired
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.ranks.ranked_record import open_record
from hookcli.record.file.reading import read_record

SCRIPT = """
import hashlib, os, sys, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(40):
    x = torch.randn(16, 8) * (20 if step in (24, 34) else 1)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
print(step, hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
try:
    os.wait()
except ChildProcessError:
    print("no child")
"""
SPIKE = "spike: grad_norm > 5 * median(20)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_spike_is_said_kept_and_told_to_a_command_and_changes_nothing(folder: Path) -> None:
    plain = forks.run([sys.executable, "train.py"], cwd=folder, env=ENV, capture_output=True, text=True)
    command = (
        'sh -c "echo $HOOKCLI_RULE,$HOOKCLI_STEP,$HOOKCLI_VALUE,$HOOKCLI_RECORD,${HOOKCLI_RUN-none} > told; exit 3"'
    )
    ran = run(folder, "run", "--rule", SPIKE, "--then", f"dump,exec:{command}", "train.py")
    assert ran.returncode == 1 and ran.stdout == plain.stdout and plain.stdout.endswith("no child\n")
    record = read_record(folder / "train.run.jsonl")
    first, second = record.of(RuleFired)
    assert (first.step, second.step, second.times, first.terms) == (24, 34, 2, ["grad_norm", "median(20)"])
    said = f"grad_norm {first.values[0]:.4g}, median(20) {first.values[1]:.4g}; weights and gradients are in "
    said = f"first at step 24 (Sequential): {said}train.rules/spike-step24; last at step 34"
    lines = [line for line in ran.stderr.splitlines() if not re.search("recording in|--then exec failed", line)]
    assert lines[0] == f"hookcli: {said.replace('first', 'rule spike fired', 1).removesuffix('; last at step 34')}"
    until((folder / "told").exists)
    until(lambda: (folder / "told").read_text().endswith("\n"))
    rule, step, value, path, recorded = (folder / "told").read_text().strip().split(",")
    assert (rule, step, float(value), recorded) == ("spike", "24", first.values[0], "none")
    assert path == str(folder / "train.run.jsonl")
    assert (
        lines[1] == f"hookcli: rule spike fired 2 times, {said}" and lines[-1] == "hookcli: exit code 1: a rule fired"
    )
    assert {25, 26, 35, 36} <= {entry.step for entry in record.entries}
    kept = {name: torch.load(folder / f"train.rules/spike-step24/{name}.pt") for name in ("weights", "gradients")}
    assert {*kept["weights"]} == {*kept["gradients"]} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    clipped = sum(float(grad.double().square().sum()) for grad in kept["gradients"].values())
    assert clipped == pytest.approx(1.0, rel=1e-4)
    shown = run(folder, "show", "train.run.jsonl")
    assert shown.returncode == 0 and shown.stderr.startswith(f"hookcli: rule spike fired 2 times, {said}\n")


@pytest.mark.sweep
def test_a_command_that_fails_is_said(folder: Path) -> None:
    """And is no reason to wait: stderr ends with it, which a reader of the pipe sees."""
    ran = run(folder, "run", "-q", "--rule", "a: loss > 100", "--then", "exec:sh -c 'echo hi; exit 3'", "train.py")
    assert ran.returncode == 1 and ran.stdout.startswith("39 ")
    lines = ran.stderr.splitlines()
    assert {"hi", "hookcli: warning: --then exec failed after rule a (exit code 3)"} <= {*lines[:3]}
    assert lines[3].startswith("hookcli: rule a fired 2 times, first at step 24 ") and "recording" not in ran.stderr
    assert lines[-1] == "hookcli: exit code 1: a rule fired"


@pytest.mark.sweep
def test_stop_ends_the_program_after_that_step_with_exit_code_1(folder: Path) -> None:
    ran = run(folder, "run", "--rule", "loss > 100", "--rule", "loss > 1e9", "--then", "stop", "train.py")
    assert ran.returncode == 1 and ran.stdout == ""
    at_once, *summary = [line for line in ran.stderr.splitlines() if "recording in" not in line]
    assert re.fullmatch(
        r"hookcli: rule loss > 100 fired at step 24 \(Sequential\): loss [\d.,]+; it ends the program", at_once
    )
    assert summary[0] == at_once and "train.py: 25 steps of 1 model" in ran.stderr
    record = read_record(folder / "train.run.jsonl")
    assert record.end is not None and record.end.exit_code == 1 and len(record.of(RuleFired)) == 1
    assert len(record.losses_of("Sequential")) == 25


@pytest.mark.sweep
def test_without_a_rule_that_fired_the_exit_code_is_the_scripts(folder: Path) -> None:
    ran = run(folder, "run", "-q", "--rule", "loss > 1e9", "--rule", "x: std(layers.1) > 1", "train.py")
    assert ran.returncode == 0
    assert run(folder, "show").stderr.count("rule") == 0
    assert read_record(folder / "train.run.jsonl").end.notes == ["--rule x: never known: std(layers.1)"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        swept(("--rule", "los > 3"), "--rule 'los > 3': unknown figure 'los'; did you mean loss?"),
        (("--rule", "loss > 3", "--then", "exec:no-such-command"), "--then exec: no such command: no-such-command; "),
        swept(("--then", "stop"), "--then: is for rules; add one"),
    ],
)
def test_a_wrong_rule_is_refused_before_the_script_starts(folder: Path, options: tuple[str, ...], said: str) -> None:
    ran = run(folder, "run", *options, "train.py")
    assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.startswith(f"hookcli: error: {said}")
    assert ran.stderr.count("\n") == 1 and not [*folder.glob("*.jsonl")]


@pytest.mark.sweep
def test_follow_shows_rules_as_they_come(tmp_path: Path) -> None:
    path = save(tmp_path / "a.run.jsonl", (HEADER, recorded_step(0)))
    command = [sys.executable, "-m", "hookcli", "show", str(path), "--follow"]
    process = forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().startswith("Net  step 0")
    for step in (3, 5):
        with path.open("ab") as file:
            line = RuleFired("Net", step, "spike", ["grad_norm", "median(50)"], [54.2, 2.25], times=1 + (step == 5))
            file.write((json.dumps(line.to_dict()) + "\n").encode())
        assert process.stdout.readline() == f"rule spike fired at step {step} (Net): grad_norm 54.2, median(50) 2.25\n"


def test_watch_takes_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train() -> str:
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        settings: dict[str, Any] = {"rules": ["last: step == 9"], "then": "stop"}
        with hookcli.watch(net, every=100, output=tmp_path / "a.run.jsonl", **settings):
            for _ in range(20):
                optimizer.zero_grad()
                net(torch.randn(2, 4)).square().mean().backward()
                optimizer.step()
        return hashlib.sha256(net.weight.detach().numpy().tobytes()).hexdigest()

    with pytest.raises(SystemExit) as stopped:
        train()
    assert stopped.value.code == 1 and "rule last fired at step 9 (Linear): step 9; it ends" in capsys.readouterr().err
    assert len(read_record(tmp_path / "a.run.jsonl").losses_of("Linear")) == 10


def test_each_rank_checks_its_own_and_the_record_says_which(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PAIR.replace("sum()", "sum() * 0 + 100 * (rank and step == 2)"))
    env = ENV | {"PYTHONPATH": f"{ENV['PYTHONPATH']}:{ENV['PYTHONPATH']}/tests"}
    command = [sys.executable, "-m", "hookcli", "run", "--rule", "loss > 50", "--then", "dump", "train.py"]
    ran = forks.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    said = (
        "rule loss > 50 fired at step 2 (Linear, rank 1): loss 100; weights and gradients are in train.run/rank1.rules/"
    )
    assert ran.returncode == 1 and f"hookcli: exit code 1: {said}loss_50-step2\n" in ran.stderr, ran.stderr
    assert (tmp_path / "train.run/rank1.rules/loss_50-step2/weights.pt").is_file()
    assert [(one.model, one.step) for one in open_record(tmp_path / "train.run").of(RuleFired)] == [
        ("Linear, rank 1", 2)
    ]
    assert run(tmp_path, "show", "train.run").stderr.startswith(f"hookcli: {said}")


def test_the_page_of_a_run_is_served_while_it_runs_and_marks_what_fired(folder: Path) -> None:
    soon = "from hookcli.commands import live; live._LAST_LOOK = 1; from hookcli.__main__ import entry; entry()"
    hookcli_run = [sys.executable, "-c", soon, "run"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        refused = run(folder, "run", "--serve", str(port), "train.py")
        assert refused.returncode == 2 and f"--serve {port}: is in use by another program" in refused.stderr
    (folder / "train.py").write_text(SCRIPT.replace("try:", "import time; time.sleep(60)\ntry:"))
    command = [*hookcli_run, "--serve", str(port), "--rule", SPIKE, "train.py"]
    process = forks.Popen(command, cwd=folder, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and f"http://127.0.0.1:{port}/ while it goes on" in process.stderr.readline()
    assert process.stdout is not None

    def served(path: str) -> str:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def payload() -> dict[str, Any]:
        return paged.payload(served("/"))

    until(lambda: len(payload()["steps"]["said"]) == 2)
    found = payload()
    assert [(one["model"], one["step"]) for one in found["steps"]["said"]] == [("Sequential", 24), ("Sequential", 34)]
    assert found["live"]["path"] == "steps" and found["steps"]["faults"][0].startswith(
        "rule spike fired 2 times, first"
    )
    process.terminate()
    process.wait()
    page = RecordPage(read_record(folder / "train.run.jsonl"))
    page.take()
    assert page.payload()["steps"]["said"] == found["steps"]["said"]
    (folder / "next.py").touch()
    command = [*hookcli_run, "--serve", str(port), "next.py"]
    ran = forks.run(command, cwd=folder, env=ENV, capture_output=True, text=True)  # waits for the first run's last look
    assert ran.returncode == 0 and f"http://127.0.0.1:{port}/ while it goes on" in ran.stderr, ran.stderr
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:  # a last look later, nothing listens any more
        try:
            served("/")
        except OSError:
            break
        time.sleep(0.2)
    else:
        pytest.fail("the server did not end")
