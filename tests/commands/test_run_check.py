"""`hookcli run --check`: a loss that was not finite in any step fails it, whatever the recorded steps were like."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE

import forks
import pytest
from commands.test_run_nan import run
from record.launching.support import ENV
from support import swept

from hookcli.record.file.reading import read_record

LOST = """
import sys, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
lost = range(*map(int, sys.argv[1:3]))
for step in range(30):
    x = torch.randn(16, 8)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean() + (float("nan") if step in lost else 0.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
sys.exit(int(sys.argv[3]))
"""


@pytest.mark.sweep
@pytest.mark.parametrize("every", [(), swept(("--every", "100"))])
def test_a_loss_that_is_lost_between_recorded_steps_fails_and_comes_first(tmp_path: Path, every: tuple[str]) -> None:
    (tmp_path / "train.py").write_text(LOST)
    ran = run(tmp_path, "run", "--check", *every, "train.py", "17", "30", "0")
    assert ran.returncode == 1 and ran.stdout == "done\n"
    at_once, *rest = [line for line in ran.stderr.splitlines() if "recording in" not in line]
    assert at_once == "hookcli: the loss is NaN (Sequential, step 17); its origin was not traced; run with --first-bad"
    assert rest[0] == "hookcli: Sequential: the loss was NaN from step 17 on (13 of 30 steps)"
    assert "checks passed" not in ran.stderr and "HK038  error" in ran.stderr and "HK005" not in ran.stderr
    assert rest[-2] == "Next: hookcli run --first-bad stop --ops train.py 17 30 0"
    assert rest[-1] == "hookcli: exit code 1: a value was not finite" and ran.stderr.count("loss is NaN") == 1
    assert ran.stderr.count("the loss was NaN") == 2
    assert "Try: `hookcli run --first-bad stop train.py 17 30 0` finds where it begins" in ran.stderr
    record = read_record(tmp_path / "train.run.jsonl")
    healthy = max(entry.step for entry in record.entries if entry.step < 17)
    assert f"\nSequential, last recorded step before the NaN · step {healthy} · loss " in ran.stderr and healthy >= (
        0 if every else 16
    )
    losses = record.losses_of("Sequential")
    assert list(losses) == list(range(30)) and [step for step, x in losses.items() if x != x] == list(range(17, 30))
    shown = run(tmp_path, "show", "train.run.jsonl")
    assert "HK038  error" in shown.stdout and shown.stderr.startswith("hookcli: Sequential: the loss was NaN from")
    chart = run(tmp_path, "show", "--over-time", "loss", "train.run.jsonl")
    assert "\nLoss (NaN or Inf in step 17 and 12 more steps)\n" in chart.stdout


@pytest.mark.sweep
def test_a_loss_that_jumps_is_a_warning_and_comes_first(tmp_path: Path) -> None:
    """A batch far out in step 17, after which the loss is finite again; the steps after it are recorded."""
    (tmp_path / "train.py").write_text(LOST.replace('float("nan") if', "x.abs().sum() * 1e4 if"))
    ran = run(tmp_path, "run", "--check", "train.py", "17", "18", "0")
    record = read_record(tmp_path / "train.run.jsonl")
    losses = record.losses_of("Sequential")
    times = losses[17] / max(list(losses.values())[:17])
    said = f"the loss jumped to {losses[17]:.4g} at step 17, {times:,.0f} times the highest before"
    assert ran.returncode == 0 and times > 1e4 and all(map(math.isfinite, losses.values()))
    assert f"hookcli: Sequential: {said}" in ran.stderr.splitlines()[1]
    assert f"HK044  warning  (model): {said}" in ran.stderr and "passed" not in ran.stderr
    assert {18, 19} <= {entry.step for entry in record.entries}
    assert run(tmp_path, "show", "train.run.jsonl").stderr.startswith(f"hookcli: Sequential: {said}\n")


@pytest.mark.sweep
def test_a_step_whose_loss_jumped_unrecorded_is_recorded_by_the_next_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        LOST.replace("range(30)", "range(60)").replace('float("nan") if', "x.abs().sum() * 1e4 if")
    )
    ran = run(tmp_path, "run", "--steps", "45:", "train.py", "37", "38", "0")
    after = ran.stderr.splitlines()[-1].removeprefix("Next: hookcli ").split()
    assert after == ["run", "--every", "1", "--steps", "17:39", "train.py", "37", "38", "0"]
    again = run(tmp_path, *after)
    assert again.stderr.splitlines()[-1] == "Next: hookcli report train-2.run.jsonl"
    entries = read_record(tmp_path / "train-2.run.jsonl").entries
    assert [entry.step for entry in entries] == list(range(17, 39))


@pytest.mark.sweep
def test_a_loss_that_is_lost_after_a_jump_needs_no_search(tmp_path: Path) -> None:
    jump = 'x.abs().sum() * 1e4 if step == 30 else float("nan") if'
    (tmp_path / "train.py").write_text(LOST.replace("range(30)", "range(60)").replace('float("nan") if', jump))
    ran = run(tmp_path, "run", "--every", "3", "train.py", "33", "60", "0")
    lost = "the loss was NaN from step 33 on (27 of 60 steps); before, it jumped to "
    assert f"hookcli: Sequential: {lost}" in ran.stderr
    assert ran.stderr.splitlines()[-1] == "Next: hookcli report train.run.jsonl"


@pytest.mark.sweep
def test_one_lost_step_among_sixty_fails_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOST.replace("range(30)", "range(60)"))
    ran = run(tmp_path, "run", "--check", "-q", "train.py", "37", "38", "0")
    lost = "the loss was NaN in 1 of 60 steps, the first is step 37"
    assert ran.returncode == 1 and lost in ran.stderr and "HK038  error" in ran.stderr
    assert lost in run(tmp_path, "show").stderr


def test_a_lost_step_that_the_program_skips_fails_too(tmp_path: Path) -> None:
    guarded = LOST.replace("    optimizer.step()", "    if loss.isfinite():\n        optimizer.step()")
    (tmp_path / "train.py").write_text(guarded)
    fault = "Sequential: the loss was NaN before step 17; the program skipped the optimizer's step"
    ran = run(tmp_path, "run", "--check", "train.py", "17", "19", "0")
    assert ran.returncode == 1 and "passed" not in ran.stderr and "HK038  error" in ran.stderr
    at_once, first, *rest = [line for line in ran.stderr.splitlines() if "recording in" not in line]
    assert at_once == "hookcli: the loss is NaN (Sequential, step 17); the program skipped the optimizer's step"
    assert first == f"hookcli: {fault}" and rest[-1] == "hookcli: exit code 1: a value was not finite"
    losses = read_record(tmp_path / "train.run.jsonl").losses_of("Sequential")
    assert list(losses) == list(range(28)) and all(map(math.isfinite, losses.values()))
    shown = run(tmp_path, "show", "train.run.jsonl")
    assert shown.stderr.startswith(f"hookcli: {fault}\n") and "HK038  error" in shown.stdout
    plain = run(tmp_path, "run", "-o", "plain.jsonl", "train.py", "17", "18", "0")
    assert plain.returncode == 0 and f"hookcli: {fault}\n" in plain.stderr
    assert f"B: {fault}\n" in run(tmp_path, "diff", "train.run.jsonl", "plain.jsonl").stderr
    page = run(tmp_path, "report", "train.run.jsonl", "-o", "page.html")
    assert "the loss was NaN before step 17; the program skipped" in (tmp_path / "page.html").read_text(), page.stderr


@pytest.mark.sweep
def test_a_step_that_was_stopped_before_its_backward_pass_has_no_missing_gradients(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOST.replace("x = torch.randn(16, 8)", "x = torch.randn(16, 8) / (step < 5)"))
    ran = run(tmp_path, "run", "--check", "--first-bad", "stop", "train.py", "0", "0", "0")
    assert ran.returncode == 1 and "first non-finite value: " in ran.stderr and "HK008" not in ran.stderr


SLOW = """
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
import hookcli.record.observe.recording_plan as schedule
schedule._SHARE = schedule._AT_ONCE = 1e-9
for step in range(100):
    net(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
"""


def test_a_run_whose_time_went_into_its_first_steps_says_which_one_was_the_last(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW)
    ran = run(tmp_path, "run", "train.py")
    assert "Linear: the last recorded step is 0 of 99; --every N records more\n" in ran.stderr
    assert "the last recorded step" not in run(tmp_path, "run", "--every", "70", "train.py").stderr


@pytest.mark.sweep
@pytest.mark.parametrize("code", [0, swept(7)])
def test_a_healthy_run_keeps_its_exit_code(tmp_path: Path, code: int) -> None:
    (tmp_path / "train.py").write_text(LOST)
    ran = run(tmp_path, "run", "--check", "train.py", "0", "0", str(code))
    assert ran.returncode == code and "passed" in ran.stderr and "NaN" not in ran.stderr


@pytest.mark.sweep
def test_the_script_s_own_exit_code_comes_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOST.replace("range(30)", "range(6)"))
    assert run(tmp_path, "run", "--check", "-q", "train.py", "3", "6", "7").returncode == 7


RANKS = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(30):
    loss = net(torch.randn(4, 8)).square().mean() + (float("nan") if (step, dist.get_rank()) == (21, 1) else 0.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


def torchrun() -> str:
    return f"{forks.python()} -m torch.distributed.run --nproc-per-node 2"


@pytest.mark.sweep
def test_a_loss_that_one_rank_alone_has_lost_fails(tmp_path: Path) -> None:
    """The summary is rank 0's, whose losses were finite; the record is that of all."""
    (tmp_path / "train.py").write_text(RANKS)
    ran = run(tmp_path, "run", "--check", *torchrun().split(), "train.py")
    assert ran.returncode == 1, ran.stderr
    fault = "Linear: the loss was NaN in 1 of 30 steps, the first is step 21"
    assert ran.stderr.splitlines()[-1] == f"hookcli: exit code 1: {fault}"
    # Of all ranks, as far as they have written by the time at which rank 0 writes it.
    assert re.search(r"\nhookcli: Linear: the loss was NaN in 1 of \d+ steps, the first is step 21\n", ran.stderr)
    shown = run(tmp_path, "show", "train.run")
    assert shown.stderr.startswith(f"hookcli: {fault}\n") and "HK038  error" in shown.stdout


@pytest.mark.sweep
def test_a_loss_that_one_rank_of_the_second_launch_has_lost_fails(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    (tmp_path / "healthy.py").write_text(RANKS.replace("(21, 1)", "None"))
    (tmp_path / "both.sh").write_text(f"{torchrun()} healthy.py; {torchrun()} train.py\n")
    ran = run(tmp_path, "run", "--check", "bash", "both.sh")
    fault = "Linear: the loss was NaN in 1 of 30 steps, the first is step 21"
    assert ran.stderr.splitlines()[-1] == f"hookcli: exit code 1: both-2.run.jsonl: {fault}", ran.stderr


FORKS = """
import os, sys
child = os.fork()
sys.argv[1:] = ["0", "0", "0"] if child else ["21", "22", "0"]
exec(open("train.py").read())
"""


@pytest.mark.parametrize("program", ["child", "second program"])
@pytest.mark.sweep
def test_a_loss_that_another_process_of_the_run_has_lost_fails(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.sh").write_text("$1 train.py 0 0 0; $1 train.py 21 22 0\n")
    (tmp_path / "forks.py").write_text(f"import torch{FORKS}if child: os.waitpid(child, 0)\n")
    (tmp_path / "train.py").write_text(LOST.replace("sys.exit(", "print("))
    command = ["forks.py"] if program == "child" else ["bash", "train.sh", forks.python()]
    ran = run(tmp_path, "run", "--check", *command)
    fault = "Sequential: the loss was NaN in 1 of 30 steps, the first is step 21"
    said = ran.stderr.splitlines()[-1]
    assert ran.returncode == 1 and re.search(r"All \d+ checks passed", ran.stderr)
    assert said.startswith("hookcli: exit code 1: ") and said.endswith(f".jsonl: {fault}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_pass_through(tmp_path: Path, number: int) -> None:
    (tmp_path / "train.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "hookcli", "run", "--check", "train.py"]
    with forks.Popen(command, cwd=tmp_path, env=ENV, stdout=PIPE, stderr=PIPE, text=True) as ran:
        assert ran.stdout is not None
        program = int(ran.stdout.readline())
        os.kill(program if number == signal.SIGKILL else ran.pid, number)
        assert ran.wait(30) == -number
        for _ in range(100):
            try:
                os.kill(program, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)
    pytest.fail("the program still runs")


BY_HAND = """
import sys, torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
for step in range(8):
    loss = net(torch.randn(16, 8)).square().mean()
    if sys.argv[1] == "grad":
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads):
                p -= 0.01 * g
"""


@pytest.mark.parametrize(
    ("how", "first", "why"),
    [
        swept("grad", "HK006 never-called and 10 more", "torch.autograd.grad, not backward(), made the gradients"),
        ("none", "HK004 gradient-not-finite and 11 more", "no backward() went"),
    ],
)
def test_a_run_whose_gradients_no_parameter_holds_is_not_judged_by_them(
    tmp_path: Path, how: str, first: str, why: str
) -> None:
    """Those of what modules return are known where torch.autograd.grad made them."""
    (tmp_path / "train.py").write_text(BY_HAND)
    ran = run(tmp_path, "run", "--check", "train.py", how)
    assert ran.returncode == 0 and "HK008" not in ran.stderr, ran.stderr
    assert f"{first}: not judged: {why}" in ran.stderr
    assert f"0.weight and 3 more: {why}" in ran.stderr


EVALUATED = """
import sys, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(8):
    if sys.argv[1] == "train":
        net.train()(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        net.eval()(torch.randn(16, 8) * float(sys.argv[2]))
"""


@pytest.mark.sweep
@pytest.mark.parametrize("trains", ["train", swept("")])
def test_forwards_without_gradients_are_judged(tmp_path: Path, trains: str) -> None:
    (tmp_path / "train.py").write_text(EVALUATED.replace("optimizer =", "optimizer =" if trains else "#"))
    ran = run(tmp_path, "run", "--check", "train.py", trains, "nan")
    assert ran.returncode == 1 and "HK003  error    0: 512 of 512 values of its output are NaN" in ran.stderr
    assert "HK002  error    (model): 128 of 128 input values are NaN" in ran.stderr
    assert ran.stderr.splitlines()[-1] == "hookcli: exit code 1: 2 errors in the recorded steps"
    assert ran.stderr.count("512 of 512 values of its output are NaN") == 1 and "worst: " not in ran.stderr
    healthy = run(tmp_path, "run", "--check", "train.py", trains, "1")
    assert healthy.returncode == 0 and " error " not in healthy.stderr and "checks" in healthy.stderr


ALONE = """
import torch
torch.manual_seed(0)
weight = torch.randn(4, 3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    (torch.randn(8, 4) @ weight).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("script", [ALONE, swept("import torch\n"), "print(1)\n"])
def test_a_run_in_which_no_check_could_run_says_so(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    ran = run(tmp_path, "run", "--check", "train.py")
    assert ran.returncode == 0 and "No check ran: no forward of a module was recorded" in ran.stderr.splitlines()
    assert "No check" not in run(tmp_path, "run", "train.py").stderr
