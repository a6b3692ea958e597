"""hookcli comm, as torchrun starts it, and its mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest

from hookcli.table.formatting import ends

Cli = Callable[..., Any]
MISTAKES = {
    ("--hook", "fp61"): "unknown --hook 'fp61'; did you mean fp16",
    ("--hook", "powersgd", "--warm-up", "1"): "--warm-up '1': give a number from 2",
    ("--hook", "net.py:nope"): "net.py: unknown name 'nope'",
    ("--hook", "net.py:loss"): "--hook net.py:loss: takes (output); a communication hook takes (state, bucket)",
    ("--loss", "sums"): "unknown loss 'sums'; did you mean sum",
    ("--columns", "hook,byte"): "--columns: unknown column 'byte'",
    ("--nproc", "1"): "--nproc 1: communication needs 2 processes or more",
    ("--parallel", "fsdp"): "--parallel fsdp: communication hooks are DDP's; FSDP2 has none",
    ("--ranks", "2"): "--ranks '2': give merged, each, or numbers such as 0,1; available ranks: 0 to 1",
    ("--format", "dot"): "--format dot: only for `hookcli graph`",
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_one_clear_line(cli: Cli, net: Path, argv: tuple[str, ...]) -> None:
    ran = cli("comm", "net.py:Net", "--input", "2x3x4x4", *argv)
    assert (ran.code, ran.out) == (2, "")
    assert MISTAKES[argv] in ran.err and len(ran.err.splitlines()) == 1 and ran.err.startswith("hookcli: error: ")


@pytest.mark.sweep
def test_under_torchrun(net: Path) -> None:
    """Two ranks, whose first alone writes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    hooks = ["--hook", "fp16,powersgd", "--hook", "noop", "--output", "comm.json"]
    command = [*launch, "-m", "hookcli", "comm", "net.py:Net", "--input", "2x3x4x4", *hooks]
    ran = forks.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0 and ran.stdout == "", ran.stderr
    said = [line for line in ran.stderr.splitlines() if line.startswith("hookcli: ")]
    assert said == [
        "hookcli: wrote comm.json: 9 rows; `hookcli show comm.json` shows it"
    ]  # of one bucket each, in which nothing hangs
    [report] = json.loads(Path("comm.json").read_text())["reports"]
    assert [row["hook"] for row in report["rows"]] == ["fp16", "powersgd", "noop"] * 3
    assert {len(row["fqns"]) for row in report["rows"]} == {4}
    assert report["meta"]["processes"] == 2 and report["meta"]["bucket_cap_mb"] is None
    assert all(row["before_numel"] == 2 * row["elements"] for row in report["rows"])


def test_names_are_shortened() -> None:
    assert ends(["a"]) == "a" and ends(["a", "b"]) == "a b" and ends(["a", "b", "c"]) == "a ... c"
