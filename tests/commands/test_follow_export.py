"""Exports of a record that grows: `hookcli show --follow -f tensorboard`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest
from commands.growing import losses, until
from records import HEADER, RUN, end, recorded_step, save, text

Cli = Callable[..., Any]


def following(*argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hookcli", "show", *argv, "--follow"]
    return forks.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.sweep
def test_each_step_is_there_while_others_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = save(tmp_path / "r.run.jsonl", (HEADER, recorded_step(0)))
    process = following(record.name, "-f", "tensorboard", "-o", "runs")
    until(lambda: losses("runs/Net/train") == [(0, 2.0)])
    with record.open("a") as file:
        file.write(text([recorded_step(100, complete=False), recorded_step(300)]))
    until(lambda: losses("runs/Net/train") == [(0, 2.0), (300, 0.00664)])
    with record.open("a") as file:
        file.write(text([end()]))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and out == "" and "wrote runs: " in err


def test_ctrl_c_leaves_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = save(tmp_path / "r.run.jsonl", RUN[:3])
    process = following(record.name, "-f", "tensorboard", "-o", "runs", "--columns", "loss")
    until(lambda: len(losses("runs/Net/train")) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130 and len(losses("runs/Net/train")) == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-f", "parquet", "-o", "x.parquet"), "--follow: parquet is written once the record is whole; tensorboard"),
        (("-f", "tensorboard", "-o", "x", "--step", "3"), "--follow exports all steps as they come; leave out --step"),
        (("-f", "tensorboard", "-o", "x", "--columns", "los"), "unknown column 'los'; did you mean loss"),
        (("--step", "all"), "leave out --step, --output and --format"),
    ],
)
def test_mistakes(cli: Cli, tmp_path: Path, argv: tuple[str, ...], said: str) -> None:
    ran = cli("show", str(save(tmp_path / "r.run.jsonl", RUN)), *argv, "--follow")
    assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) == 1, ran.err
