"""A record that takes no more while the program goes on: what is said of the run is what it did, and what is there."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from itertools import product
from pathlib import Path

import forks
import pytest
import torch
from support import swept
from torch import nn

import hookcli
from hookcli.record.file.reading import read_record
from hookcli.record.file.writer import RecordWriter

STEPS = 6
SCRIPT = f"""
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({STEPS}):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained", step + 1)
"""


SEVERAL = ((2, 100),)
"""Complete steps in a full record, and the bytes that are left after them."""
HEALTHY = SCRIPT.replace("ones(2, 4)).sum()", "randn(8, 4)).square().mean()").replace("lr=0.1", "lr=0.01")

LIMITED = """
import resource, sys
from hookcli.__main__ import entry
size = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
entry()
"""


def run(
    folder: Path, size: int = resource.RLIM_INFINITY, *options: str, script: str = SCRIPT
) -> subprocess.CompletedProcess[str]:
    """The script, where no file grows beyond this size."""
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-c", LIMITED, str(size), "run", *options, "--every", "1", "-o", "r.jsonl", "train.py"]
    return forks.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.sweep
def test_a_summary_tells_the_program_s_steps_and_the_recorded_steps_that_are_in_the_file(tmp_path: Path) -> None:
    assert f"{STEPS} recorded steps in r.jsonl" in run(tmp_path).stderr
    lines = (tmp_path / "r.jsonl").read_bytes().splitlines(keepends=True)
    steps = [number for number, line in enumerate(lines) if b'"line":"step"' in line]
    ran = run(tmp_path, sum(map(len, lines[: steps[2]])) + 100)  # two steps, and a part of the third
    assert (ran.returncode, ran.stdout) == (0, f"trained {STEPS}\n")
    record = read_record(tmp_path / "r.jsonl")
    losses = [recorded.loss for recorded in record.steps(record.entries)]
    assert [place.step for place in record.entries] == [0, 1] and None not in losses
    assert re.search(rf"{STEPS} steps of 1 model in .*; 2 recorded steps in r.jsonl", ran.stderr), ran.stderr
    full = f"can't write {tmp_path / 'r.jsonl'}: File too large"
    assert f"{full}; nothing was recorded from then on" in ran.stderr
    (row,) = [line for line in ran.stderr.splitlines() if re.match(r"Sequential +\d", line)]
    assert row.split()[2:4] == [str(STEPS)] * 2
    # The first loss is known, and the last one is not: the program went on for steps that are not in the record.
    assert f"{losses[0]:.4g}"[:5] in row and f"{losses[1]:.4g}"[:5] not in row, (losses, row)


def test_nothing_is_hooked_or_copied_once_the_record_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counts(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hooked.append(len(self._forward_hooks) + len(self._forward_pre_hooks))
            return super().forward(x)

    hooked: list[int] = []
    model = nn.Sequential(nn.Linear(4, 4), Counts(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = RecordWriter.write

    def full(self: RecordWriter, line: object) -> None:
        raise OSError(28, "No space left on device")

    with hookcli.watch(model, every=1, output=tmp_path / "r.jsonl", first_bad="report"):
        for step in range(STEPS):
            monkeypatch.setattr(RecordWriter, "write", full if step == 2 else whole)
            y = model(torch.full((2, 4), float("nan") if step > 3 else 1.0)).sum()
            y.backward()
            optimizer.step()
    assert all(hooked[:3]) and not any(hooked[3:]) and not any(m._forward_hooks for m in model.modules())
    record = read_record(tmp_path / "r.jsonl")
    assert [place.step for place in record.entries] == [0, 1] and not record.non_finite
    end = record.end
    assert end is not None and "No space left on device" in end.notes[0]
    assert (end.program_steps, end.models[0]["steps"], end.models[0]["recorded_steps"]) == (STEPS, STEPS, 2)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("steps", "room"),
    [*SEVERAL, *(swept(*case) for case in product((0, 2, 4), (0, 100, 900)) if case not in SEVERAL)],
)
def test_a_checked_run_that_could_not_all_be_recorded_does_not_pass(tmp_path: Path, steps: int, room: int) -> None:
    whole = run(tmp_path, resource.RLIM_INFINITY, "--check", script=HEALTHY)
    assert whole.returncode == 0 and "checks passed" in whole.stderr, whole.stderr
    lines = (tmp_path / "r.jsonl").read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if b'"line":"step"' in line]
    ran = run(tmp_path, sum(map(len, lines[: ends[steps]])) + room, "--check", script=HEALTHY)
    assert (ran.returncode, ran.stdout) == (2, f"trained {STEPS}\n")
    assert "checks passed" not in ran.stderr and "; the program continues without being recorded" in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("hookcli: exit code 2: not all could be recorded")
    record = read_record(tmp_path / "r.jsonl")
    assert [place.step for place in record.entries] == list(range(steps)) and not record.damaged
    assert record.end is None or record.end.program_steps == STEPS


ENDINGS = {  # what the script does after its third step and at its end: the exit code
    ("model[0].weight.data.fill_(float('nan'))", ""): 1,
    ("pathlib.Path('r.jsonl').unlink()", ""): 2,
    ("pathlib.Path('r.jsonl').rename('other.jsonl')", ""): 2,
    ("pathlib.Path('r.jsonl').unlink()", "sys.exit(3)"): 3,
    ("pathlib.Path('other.txt').touch()", ""): 0,
    ("", "os._exit(0)"): 2,
    ("os._exit(4)", ""): 4,
}


@pytest.mark.parametrize(
    "case",
    [case if re.search("unlink.*'[)]$|_exit[(]0", "".join(case)) else swept(case) for case in ENDINGS],
)
def test_a_record_that_is_gone_does_not_pass_and_a_fault_in_it_counts_more(
    tmp_path: Path, case: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # tables of the summary are drawn with other characters
    then, last = case
    stepped = "    optimizer.step()"
    script = HEALTHY.replace(stepped, f"{stepped}\n    if step == 2:\n        {then or 'pass'}")
    ran = run(tmp_path, resource.RLIM_INFINITY, "--check", script=f"import os, pathlib, sys\n{script}{last}\n")
    assert ran.returncode == ENDINGS[case], ran.stderr
    for said in ("was deleted or replaced while the program ran", "no record was kept"):
        assert (said in ran.stderr) == ("r.jsonl" in then), ran.stderr
    assert ("r.jsonl has no end, as after os._exit" in ran.stderr) == ("os._exit" in last)
    assert "no summary" not in ran.stderr and "\\u" not in ran.stderr
    assert ("checks passed" in ran.stderr) == (ran.returncode == 0)


@pytest.mark.sweep
def test_no_witness_and_no_empty_record_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    script = f"import os, signal\n{HEALTHY}os.kill(os.getpid(), signal.SIGKILL)\n"
    assert run(tmp_path, resource.RLIM_INFINITY, "--check", script=script).returncode == -9
    killed = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert run(tmp_path, resource.RLIM_INFINITY, "--check", script=killed).returncode == -9
    assert not (tmp_path / "r.jsonl").exists()  # of a program that has recorded nothing
    assert run(tmp_path, resource.RLIM_INFINITY, "--check", script=HEALTHY).returncode == 0
    assert not list((tmp_path / "tmp").glob("hookcli-*"))
