"""The launch that a process belongs to: a program with its children, or the ranks that one launcher started."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import pytest

from hookcli.record.launching.launched import VARIABLE, Launched


def test_the_launch_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Launched(1, "a.run.jsonl", False, "a.py", ["a.py"], {})
    monkeypatch.setenv(VARIABLE, "")
    program = run.joined()
    assert program.launch.endswith(f" {os.getpid()}") and json.loads(os.environ[VARIABLE])["launch"] == program.launch
    assert program.joined() == program and not program.is_child  # as a program that executes itself again
    assert replace(program, joined_by=1).is_child
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "from multiprocessing.spawn import spawn_main; ..."])
    child = replace(run, launch="of its parent")
    assert child.joined() is child and run.joined().launch.endswith(f" {os.getppid()}")
    assert child.is_child and run.joined().is_child
    monkeypatch.undo()
    ranks = []
    for rank, launcher in ((0, "x"), (1, "x"), (0, "y")):
        values = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, VARIABLE: ""}
        file = f"/tmp/{launcher}/attempt_0/{rank}/error.json"
        for name, value in (values | {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_ERROR_FILE": file}).items():
            monkeypatch.setenv(name, str(value))
        ranks.append(program.joined())
        assert ranks[-1].joined() is ranks[-1] and not ranks[-1].is_child  # executed again
        assert replace(ranks[-1], joined_by=1).joined().is_child  # a program that the rank has started
    assert ranks[0] == ranks[1] != ranks[2]


def test_the_launch_of_ranks_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the run and their process group in common, or variables; not their parents or the time of import."""
    run = Launched(1, "a.run.jsonl", False, "a.py", ["a.py"], {})
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("MASTER_PORT", "1")
    first, second = (replace(run, launch=f"program {one}", joined_by=one).among_ranks("") for one in (7, 8))
    assert first.launch == second.launch and (first.joined_by, second.joined_by) == (7, 8)
    assert json.loads(os.environ[VARIABLE])["launch"] == first.launch  # which their children inherit
    monkeypatch.setenv("MASTER_PORT", "2")
    others = (run.among_ranks(""), replace(run, process=2).among_ranks(""), run.among_ranks("a"), run.among_ranks("b"))
    assert len({first.launch, *(one.launch for one in others)}) == 5
