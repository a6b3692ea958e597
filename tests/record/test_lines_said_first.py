"""What parts of capabilities say first of a run: the fault of the whole run before that of a step."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from textwrap import dedent

import forks
import pytest
from record.launching.support import ENV

SINCE = "Sequential: the replicas' weights differ from step"
BIAS = "in 1 of 4 parameters, the first is 2.bias"
TRAIN = """
    import torch
    from record import odd_rank_jobs
    torch.distributed.init_process_group("gloo")
    odd_rank_jobs.CHANGED = 13
    odd_rank_jobs.train("far changed", 16, 2)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.sweep
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
