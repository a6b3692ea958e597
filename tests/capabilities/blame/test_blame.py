"""Ranks whose weights have come apart, and the rank, micro-batch and row that made a gradient large or NaN."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import forks
import pytest
from capabilities.blame import blame_jobs
from ranks import run_ranks, stop_ranks
from record.launching.support import ENV
from records import HEADER, end, recorded_step, save

from hookcli.capabilities.blame.headline import headline
from hookcli.capabilities.blame.lines import Blame
from hookcli.record.file.ranks.ranked_record import RankedRecord, read_ranks
from hookcli.record.file.ranks.replicas import apart
from hookcli.record.file.reading import read_record
from hookcli.record.file.views.headlines import wrong_lines
from hookcli.record.file.views.ranks_view import rank_remarks

pytestmark = pytest.mark.xdist_group("ranks")  # one pool of ranks


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    yield
    for size in (2, 3):
        stop_ranks(size)


def record_of(folder: Path, how: str, size: int = 2, **settings: object) -> RankedRecord:
    folder.mkdir(exist_ok=True)
    run_ranks(size, blame_jobs.in_ranks, str(folder / "train.run"), how, **settings)
    return read_ranks(folder / "train.run")


SINCE = "Sequential: the replicas' weights differ from step"
BIAS = "in 1 of 4 parameters, the first is 2.bias"
PLANTED = {
    "seed by hand": f"{SINCE} 0 on: ranks 0, 1 differ, in 4 of 4 parameters, the first is 0.weight",
    "changed": f"{SINCE} 5 on (they agreed at step 4): ranks 0, 1 differ, {BIAS}",
    "changed by hand": f"{SINCE} 5 on (they agreed at step 4): ranks 0, 1 differ, {BIAS}",
    "seed": "",  # DistributedDataParallel broadcasts rank 0's weights
    "buffers": "",
    "models": "",
    "own": "",
    "own seed": "",
}


@pytest.mark.parametrize("how", PLANTED)
def test_weights_that_differ_are_found_where_they_should_not(how: str, tmp_path: Path) -> None:
    record = record_of(tmp_path, how)
    assert apart(record) == PLANTED[how] and wrong_lines(record) == [PLANTED[how]] * bool(PLANTED[how])
    own = "Sequential: ranks 0, 1 train weights of their own: nothing makes their gradients alike"
    assert (own in rank_remarks(record)) is how.startswith("own")


def test_the_rank_that_is_alone_and_its_parameter(tmp_path: Path) -> None:
    record = record_of(tmp_path, "changed", size=3, every=2)
    said = "6 on (they agreed at step 4): rank 1 differs from ranks 0, 2"
    assert apart(record) == f"{SINCE} {said}, {BIAS}"
    steps = {step.step: step for step in record.steps(record.entries)}
    for number, differing in ((4, []), (6, ["2.bias"])):
        rows = steps[number].rows("replicas")
        assert [row.fqn for row in rows if row["checksum"] is None] == differing and len(rows) == 4


def test_older_records_and_those_of_one_process_have_no_digests(tmp_path: Path) -> None:
    for rank in range(2):
        header = replace(HEADER, rank=rank, ranks=2)
        save(tmp_path / f"rank{rank}.jsonl", (header, *map(recorded_step, range(2)), end()))
        lines = [json.loads(line) for line in (tmp_path / f"rank{rank}.jsonl").read_text().splitlines()]
        old = [{key: value for key, value in line.items() if key != "weights"} for line in lines]
        (tmp_path / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    record = read_ranks(tmp_path)
    assert [entry.step for entry in record.entries] == [0, 1] and not record.damaged and wrong_lines(record) == []
    assert wrong_lines(read_record(tmp_path / "rank0.jsonl")) == []


def test_the_rank_and_micro_batch_of_a_jump_and_of_a_nan(tmp_path: Path) -> None:
    record = record_of(tmp_path / "far", "far", steps=13, parts=3)
    line = headline(record)
    assert line.startswith("Sequential: the gradient's norm jumped to ") and " at step 12, " in line
    assert line.endswith(
        ": micro-batch 2 of 3 on rank 1 (100% of the rows' squared gradients), there row 3 of 8 (100%), most in 2"
        "; all counted from 0"
    )
    record = record_of(tmp_path / "nan", "nan", steps=14, parts=3)
    where = "micro-batch 2 of 3 on rank 1, there row 3 of 8, first in 2; all counted from 0"
    assert wrong_lines(record) == [f"Sequential: the gradient was not finite at step 12: {where}"]
    record = record_of(tmp_path / "bad", "nan", steps=14, parts=3, first_bad="report")
    found = record.non_finite_by_rank()
    assert [rank for rank, one in found] == [1, 0] and found[0][1].cause.endswith(
        "in micro-batch 2 of 3 (counted from 0)"
    )
    assert "non-finite first on rank 1" in rank_remarks(record)


def lines_of(tmp_path: Path, *of_ranks: list[Blame]) -> str:
    tmp_path.mkdir(exist_ok=True)
    for rank, blames in enumerate(of_ranks):
        header = replace(HEADER, rank=rank, ranks=len(of_ranks))
        save(tmp_path / f"rank{rank}.jsonl", (header, *map(recorded_step, range(30)), *blames, end()))
    return headline(read_ranks(tmp_path))


def test_what_stands_out_is_said_and_what_does_not(tmp_path: Path) -> None:
    jump = Blame("Net", 20, 50.0, 2.0, [3.0, 4.0], [], 8, 0.0, "head")
    said = "Net: the gradient's norm jumped to 50.00 at step 20, 25 times the median before: "
    assert lines_of(tmp_path, [jump], [jump]) == f"{said}no micro-batch, rank or row stands out"
    assert lines_of(tmp_path / "hostile", [replace(jump, passes=[])]) == ""
    later = replace(jump, step=21)
    assert lines_of(tmp_path, [jump, later], []) == (
        f"{said}micro-batch 1 of 2 on rank 0 (57% of the rows' squared gradients), there no row of 8 stands out;"
        " all counted from 0;"
        " so it did in 1 more recorded step"
    )
    bad = Blame("Net", 25, None, 2.0, [float("inf")] * 2, [], 8, 0.0, "head")
    assert lines_of(tmp_path, [replace(jump, step=3), bad], [bad]) == ""  # all of it is bad, and the jump long ago
    assert lines_of(tmp_path, [jump, bad], [jump, bad]).startswith(said)  # which led there
    one = replace(bad, passes=[1.0], rows=[1, 4, 5, 6], mixed="bn")
    spread = lines_of(tmp_path, [replace(one, passes=[float("inf")])], [replace(one, rows=[])])
    where = "rank 0, there rows 1, 4, 5 ... of 8, first in head (bn mixes rows); all counted from 0"
    assert spread == f"Net: the gradient was not finite at step 25: {where}"
    unknown = lines_of(tmp_path, [replace(jump, passes=[1e9], size=0)], [replace(jump, passes=[1.0])])
    assert "rank 0 (100% of the rows' squared gradients), there its rows are unknown" in unknown


TRAIN = """
    import torch
    from capabilities.blame import blame_jobs
    torch.distributed.init_process_group("gloo")
    blame_jobs.CHANGED = 13
    blame_jobs.train("far changed", 16, 2)
    torch.distributed.destroy_process_group()
"""


def test_a_script_under_torchrun(tmp_path: Path) -> None:
    """Both come first in the summary and in show; --check finds the one, which is an error."""
    (tmp_path / "train.py").write_text(dedent(TRAIN))
    (tmp_path / "torchrun").write_text(f'#!/bin/sh\nexec {forks.python()} -m torch.distributed.run "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    env = ENV | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    hookcli = (sys.executable, "-m", "hookcli")
    command = (*hookcli, "run", "--check", "--every", "1", "torchrun", "--nproc-per-node", "2", "train.py")
    ran = forks.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    told = [line.removeprefix("hookcli: ") for line in ran.stderr.splitlines() if line.startswith("hookcli: Seq")]
    assert ran.returncode == 1, ran.stderr
    assert told[0] == f"{SINCE} 14 on (they agreed at step 13): ranks 0, 1 differ, {BIAS}"
    assert " at step 12, " in told[1] and ": micro-batch 1 of 2 on rank 1 (100% of the rows'" in told[1]
    assert "HK052  error" in ran.stderr
    shown = forks.run((*hookcli, "show", "train.run"), cwd=tmp_path, env=env, capture_output=True, text=True)
    assert [line.removeprefix("hookcli: ") for line in shown.stderr.splitlines()[:2]] == told[:2]
