"""A rank that fails, dies or hangs: one line, exit code 2, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forks
import pytest
from engine.ranks.support import MODELS, hookcli, load, torchrun

from hookcli.commands import processes
from hookcli.commands.options import Options
from hookcli.errors import ProcessesWanted

pytestmark = pytest.mark.xdist_group("failing ranks")  # waits, which are best begun early
HOOKCLI = [sys.executable, "-m", "hookcli"]
TWO = ("--nproc", "2")
HANGING = ("hang", "wait", "swallow")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Runs that end by their time limits, which are waited for together, while the other tests run."""
    folder = tmp_path_factory.mktemp("hanging")
    (folder / "models.py").write_text(MODELS)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder, "kept": True}
    runs = {what: forks.Popen([*HOOKCLI, *only(what), *TWO, "--timeout", "5"], **streams) for what in HANGING}
    yield runs
    for run in runs.values():
        run.kill()
        run.communicate()


def only(what: str, ranks: str = "(1,)") -> tuple[str, ...]:
    return "activations", "models.py:only", "--arg", f"what={what}", "--arg", f"ranks={ranks}", "--input", "4x4"


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("hookcli: error")]


@pytest.mark.sweep
def test_a_rank_that_raises_is_named_and_what_it_saw_is_reported(folder) -> None:
    ran = hookcli(*only("raise"), *TWO, "-f", "json", folder=folder)
    assert ran.returncode == 2
    assert errors(ran.stderr) == ["hookcli: error: rank 1 of 2: 1 (Only) failed on input 2x4: ValueError: no luck"]
    assert len(ran.stderr.splitlines()) == 2  # and where in the model's code
    (folder / "partial.json").write_text(ran.stdout)
    report = load(folder / "partial.json")
    assert [row.fqn for row in report.rows] == ["0"] and report.meta["rank"] == 1 and not report.meta["complete"]


@pytest.mark.sweep
def test_what_all_ranks_fail_alike_is_told_once(folder) -> None:
    ran = hookcli(*only("raise", "(0, 1)"), *TWO, folder=folder)
    assert ran.returncode == 2
    assert errors(ran.stderr) == ["hookcli: error: 1 (Only) failed on input 2x4: ValueError: no luck"]


def test_a_rank_that_is_killed_is_named(folder) -> None:
    ran = hookcli(*only("die"), *TWO, folder=folder)
    *_, last = ran.stderr.splitlines()  # the other rank's gloo may have logged that the connection was closed
    assert (ran.returncode, last) == (2, "hookcli: error: rank 1 died: SIGKILL (often: out of memory)")


@pytest.mark.sweep
def test_under_torchrun_the_rank_tells_and_no_other(folder) -> None:
    ran = torchrun(2, "-m", "hookcli", *only("raise"), folder=folder)
    assert errors(ran.stderr) == ["hookcli: error: rank 1 of 2: 1 (Only) failed on input 2x4: ValueError: no luck"]
    assert ran.returncode != 0  # torchrun's own
    assert "exitcode  : 2" in ran.stderr


@pytest.mark.sweep
def test_a_rank_that_ends_by_itself_is_named_and_its_exit_code_is_not_taken_over(folder) -> None:
    ran = hookcli(*only("leave"), *TWO, folder=folder)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "hookcli: error: rank 1 exited with code 7 and no error message\n"


def test_an_interrupt_ends_all_and_is_said_once(folder) -> None:
    command = [*HOOKCLI, *only("hang", "(0, 1)"), *TWO]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    launcher = forks.Popen(command, cwd=folder, start_new_session=True, **streams)
    hang = [folder / "hangs0", folder / "hangs1"]
    try:
        wait_for(lambda: all(path.exists() and path.read_text() for path in hang))
        os.killpg(launcher.pid, signal.SIGINT)
        _, said = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    assert (launcher.returncode, said) == (130, "hookcli: interrupted\n")
    wait_for(lambda: not any(lives(int(path.read_text())) for path in hang))


@pytest.mark.sweep
def test_ranks_that_are_only_starting_do_not_outlive_the_launcher_either(folder) -> None:
    command = [*HOOKCLI, *only("hang", "(0, 1)"), *TWO]
    launcher = forks.Popen(command, fresh=True, cwd=folder, start_new_session=True)
    try:
        wait_for(lambda: len(children(launcher.pid)) == 2)
        ranks = children(launcher.pid)
        launcher.kill()
        wait_for(lambda: not any(map(lives, ranks)), limit=30)
    finally:
        launcher.kill()
        launcher.wait()


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def test_a_mistake_is_told_under_torchrun_whichever_rank_is_first(folder) -> None:
    ran = torchrun(2, "-m", "hookcli", "activations", "models.py:only", "--format", "tabel", folder=folder)
    (line,) = errors(ran.stderr)
    assert "tabel" in line and "table" in line


@pytest.mark.sweep
def test_no_process_outlives_a_launcher_that_is_killed(folder) -> None:
    command = [*HOOKCLI, *only("hang", "(0, 1)"), *TWO]
    launcher = forks.Popen(command, fresh=True, cwd=folder, start_new_session=True)
    hang = [folder / "hangs0", folder / "hangs1"]  # each holds a process id
    try:
        wait_for(lambda: launcher.poll() is not None or all(path.exists() and path.read_text() for path in hang))
        launcher.kill()
        wait_for(lambda: not any(lives(int(path.read_text())) for path in hang))
    finally:
        launcher.kill()
        launcher.wait()


def wait_for(condition: Callable[[], bool], limit: float = 90) -> None:
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--input", "3x4", "--nproc", "2"), "a batch of 3 does not divide by 2 processes; --batch-size 4 does"),
        (("--input", "4x4", "--nproc", "2", "--backend", "nccl"), "--backend nccl: needs GPUs"),
    ],
)
def test_what_can_not_be_shared_out(folder, argv, said) -> None:
    ran = hookcli("activations", "models.py:only", "--arg", "what=x", *argv, folder=folder)
    (line,) = ran.stderr.splitlines()
    assert ran.returncode == 2 and ran.stdout == "" and said in line and "rank" not in line


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ("--nproc", "2", "--ranks", "0,2"),
            "--ranks '0,2': give merged, each, or numbers such as 0,1; available ranks: 0 to 1",
        ),
        (("--nproc", "2", "--ranks", "al"), "--ranks 'al'"),
        (("--parallel", "fsdp"), "--parallel fsdp: needs several processes; give --nproc N"),
        (("--ranks", "each"), "--ranks each: needs several processes"),
        (("--nproc", "2", "--parallel", "dpp"), "did you mean ddp"),
        (("--nproc", "2", "--backend", "mpi"), "unknown --backend 'mpi'"),
        (("--nproc", "0"), "--nproc"),
    ],
)
def test_wrong_words_are_told_before_anything_is_started(cli, argv, said) -> None:
    ran = cli("activations", "alexnet", *argv)
    assert ran.code == 2 and ran.out == "" and said in ran.err


def test_no_more_processes_than_memory_holds(cli, monkeypatch) -> None:
    monkeypatch.setattr(processes, "available_memory", lambda: 900 * 2**20)
    ran = cli("activations", "alexnet", "--batch-size", "4", "--nproc", "4")
    room = "900 MiB of memory is available, enough for 3 of 300 MiB each, without the model"
    assert (ran.code, ran.out) == (2, "") and ran.err == f"hookcli: error: --nproc 4: {room}\n"
    for memory, wanted in ((900 * 2**20, 3), (None, 256)):
        monkeypatch.setattr(processes, "available_memory", lambda memory=memory: memory)
        with pytest.raises(ProcessesWanted), processes.several(Options(nproc=wanted), values=True):
            pass


def test_shapes_need_one_process_only(cli) -> None:
    ran = cli("shapes", "alexnet", "--nproc", "2")
    assert ran.code == 2 and "unknown option '--nproc'" in ran.err


def test_more_processes_than_torchrun_has_started(cli, monkeypatch) -> None:
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    ran = cli("activations", "alexnet", "--nproc", "3")
    assert ran.code == 2 and "torchrun has started 2 processes" in ran.err


@pytest.mark.parametrize("command", [("models",), ("hooks", "alexnet"), ("shapes", "alexnet"), ("--version",)])
def test_under_torchrun_other_ranks_leave_one_process_work_to_the_first(cli, monkeypatch, command) -> None:
    for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    ran = cli(*command)
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_rank_that_hangs_is_named_within_the_timeout(hanging) -> None:
    out, err = hanging["hang"].communicate()
    (line,) = errors(err)
    assert hanging["hang"].returncode == 2
    assert line == "hookcli: error: rank 1 of 2: 1 (Only) hangs on input 2x4: still running after 5 s (--timeout)"
    assert "Linear" in out  # what it saw before


def test_ranks_that_wait_for_a_collective_which_another_does_not_call(hanging) -> None:
    (line,) = errors(hanging["wait"].communicate()[1])
    assert hanging["wait"].returncode == 2 and "all ranks wait for one another" in line and "--timeout" in line


def test_a_model_that_swallows_what_interrupts_it_is_told_all_the_same(hanging) -> None:
    (line,) = errors(hanging["swallow"].communicate()[1])
    assert hanging["swallow"].returncode == 2 and "rank 1 hangs" in line and "models.py" in line
