"""`hookcli run`: what a user sees of it, and what ends badly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from record.launching.support import ENV

from hookcli.record.file.reading import read_record

Cli = Callable[..., Any]

TRAIN = """
    import sys
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
    print("loss", loss.item(), sys.argv[1:])
    """


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes `train.py` into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "train.py").write_text(dedent(text))
        return "train.py"

    return write


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_what_a_run_leaves(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--every", "2", script(TRAIN), "--epochs", "3")
    assert ran.code == 0 and ran.out.startswith("loss 0.") and ran.out.endswith("['--epochs', '3']\n")
    assert ran.err.startswith("hookcli: train.py: 5 steps of 1 model in ")
    assert "3 recorded steps in train.run.jsonl" in ran.err and "hookcli show train.run.jsonl" in ran.err
    found = lines("train.run.jsonl")
    assert [line["line"] for line in found] == ["run", "step", "step", "step", "end"]
    assert found[0]["argv"] == ["train.py", "--epochs", "3"] and [line["step"] for line in found[1:4]] == [0, 2, 4]
    assert found[3]["losses"] == [float(ran.out.split()[1])]
    again = cli("run", "--quiet", "train.py")
    assert again.err == "" and lines("train-2.run.jsonl")[-1]["exit_code"] == 0
    shown = cli("show", "train.run.jsonl", "--step", "2")
    assert shown.code == 0 and "|dw|/|w|" in shown.out


@pytest.mark.parametrize(
    ("text", "code"),
    [("import sys; sys.exit(3)", 3), ("raise SystemExit('no')", 1), ("1 / 0", 1), ("def f(:", 1), ("", 0)],
)
def test_a_script_that_never_calls_a_module(text: str, code: int, cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", script(text))
    assert (ran.code, ran.out) == (code, "") and "hookcli/" not in ran.err
    assert "no module was called" in ran.err and "no record was kept" in ran.err
    assert not list(Path().glob("*.jsonl"))
    ran = cli("run", "--output", "given.jsonl", script(text))
    assert ran.code == code and "0 recorded steps in given.jsonl" in ran.err
    assert [line["line"] for line in lines("given.jsonl")] == ["run", "end"]


def test_why_no_step_was_recorded(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--steps", "5:", script(TRAIN))
    assert "no step was recorded: --steps begins at step 5, but the last step was 4" in ran.err
    ran = cli("run", "--max-seconds", "0", script(TRAIN))
    assert "no step was recorded in the 0 s of --max-seconds" in ran.err
    assert "no step was recorded" not in cli("run", "--steps", "4:", script(TRAIN)).err


@pytest.mark.parametrize("made", ["torch.jit.script(torch.nn.Linear(2, 2))", "torch.nn.Linear(2, 2)"])
@pytest.mark.parametrize(("options", "told"), [((), False), (("--steps", "100:"), True)])
def test_why_no_forward_was_recorded(
    made: str, options: tuple[str, ...], told: bool, cli: Cli, script: Callable[[str], str]
) -> None:
    """TorchScript, no step of which can be recorded, has its own note."""
    text = f"import torch\nmodel = {made}\nwith torch.no_grad():\n    for _ in range(3): model(torch.ones(1, 2))"
    ran = cli("run", *options, script(text))
    assert ("--steps begins at step 100, but the last step was 2" in ran.err) == told
    assert ("no step was recorded" in ran.err) == told


def test_a_record_of_our_own_failure_is_kept(cli: Cli, script: Callable[[str], str]) -> None:
    text = """
        import torch
        class Odd(torch.nn.Linear):
            def parameters(self, recurse=True):
                raise KeyError("mine")
        Odd(2, 2)(torch.ones(1, 2))
        """
    ran = cli("run", script(text))
    assert ran.code == 0 and "KeyError" in lines("train.run.jsonl")[-1]["notes"][0]


def test_a_record_that_was_moved_is_left(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", script("import os; os.rename('train.run.jsonl', 'mine.jsonl')"))
    assert ran.code == 0 and [line["line"] for line in lines("mine.jsonl")] == ["run", "end"]


def test_a_script_whose_modules_have_no_parameters(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", script("import torch\nfor _ in range(3): torch.nn.ReLU()(torch.ones(2))"))
    assert "no module with parameters was called" in ran.err and "ReLU (3)" in ran.err


def test_an_error_in_a_forward_shows_the_scripts_own_frames(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", script("import torch\nmodel = torch.nn.Linear(2, 3)\nmodel(torch.ones(1, 5))"))
    assert ran.code == 1 and "shapes cannot be multiplied" in ran.err and "hookcli/" not in ran.err
    end = lines("train.run.jsonl")[-1]
    assert end["exit_code"] == 1 and end["error"].startswith("RuntimeError: ") and end["models"][0]["forwards"] == 1


BAD = TRAIN.replace("loss.backward()", "(loss * float('nan' if step == 3 else 1)).backward()")


def test_the_first_bad_value_is_told_at_once(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--first-bad", "report", script(BAD))
    said = "first non-finite value: 1 NaN in the loss (Sequential, step 3)"
    assert ran.code == 0 and ran.err.startswith(f"hookcli: {said}\n") and ran.out.startswith("loss")
    assert [line["what"] for line in lines("train.run.jsonl") if line["line"] == "non_finite"] == ["loss"]


def test_the_step_of_the_first_bad_value_is_the_one_that_is_shown(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--first-bad", "stop", script(BAD))
    assert "Sequential · step 3 · " in ran.err and "loss NaN" in ran.err and "step 0" not in ran.err
    (recorded,) = [line for line in lines("train.run.jsonl") if line["line"] == "step" and line["step"] == 3]
    (grads,) = [report for report in recorded["reports"] if report["probe"] == "grads"]
    reasons = {item["reason"] for item in grads["skipped"] if item["fqn"].endswith("weight")}
    assert reasons == {"gradients are read as the optimizer steps, which did not happen"}


def test_a_script_that_is_stopped_at_the_first_bad_value(cli: Cli, script: Callable[[str], str]) -> None:
    ran = cli("run", "--first-bad", "stop", script(BAD))
    assert (ran.code, ran.out) == (1, "") and "Traceback" not in ran.err
    assert "first non-finite value: 1 NaN in the loss (Sequential, step 3)" in ran.err
    assert lines("train.run.jsonl")[-1]["exit_code"] == 1


ERRORS = {
    ("gone.py",): "gone.py",
    (): "SCRIPT",
    ("-m", "no.such.module"): "no.such",
    ("--probe", "activation", "train.py"): "activations",
    ("--probe", "shapes", "train.py"): "needs a run of its own (`hookcli shapes`)",
    ("--steps", "5", "train.py"): "--steps '5': give a range such as 0:1000",
    ("--steps", "9:2", "train.py"): "--steps '9:2'",
    ("--first-bad", "halt", "train.py"): "'halt'; choose from: report, stop",
    ("--every", "0", "train.py"): "--every",
    ("--max-seconds", "-1", "train.py"): "--max-seconds",
    ("--output", "no/such/folder.jsonl", "train.py"): "can't write no/such/folder.jsonl: No such file or directory",
    ("--output", "/dev/full", "train.py"): "can't write /dev/full: No space left on device",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_mistakes(arguments: tuple[str, ...], cli: Cli, script: Callable[[str], str]) -> None:
    script("print('it ran')")
    ran = cli("run", *arguments)
    assert (ran.code, ran.out) == (2, "") and ERRORS[arguments] in ran.err
    assert ran.err.startswith("hookcli: error: ") and len(ran.err.splitlines()) <= 3
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]


# As processes of their own.

HOOKCLI = (sys.executable, "-m", "hookcli", "run", "--every", "2", "--output", "record.jsonl")

EVERYTHING = """
    import os, resource, shutil, sys
    os.environ["OMP_NUM_THREADS"] = "3"
    assert "torch" not in sys.modules
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    class Data(torch.utils.data.Dataset):
        def __init__(self):
            self.model = nn.Linear(4, 4).requires_grad_(False)
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return self.model(torch.full((4,), float(index)))

    def main():
        print(torch.get_num_threads())
        torch.manual_seed(0)
        data = Data()
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in DataLoader(data, batch_size=1, num_workers=2):
            optimizer.zero_grad()
            loss = model(x).sum()
            if not os.fork():
                loss.backward()
                model(x)
                os._exit(0)
            os.wait()
            loss.backward()
            optimizer.step()
        here = os.getcwd()
        os.mkdir("deleted")
        os.chdir("deleted")
        shutil.rmtree(os.getcwd())
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(os.path.join(here, sys.argv[1])) + 700,) * 2)
        for _ in range(6):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        print(sum(p.sum().item() for p in model.parameters()))
        os.close(2)
        sys.exit(5)

    if __name__ == "__main__":
        main()
    """


def test_all_that_scripts_do_in_one(tmp_path: Path) -> None:
    """Environment variables before torch, workers, forks, a folder that is gone, a full disk, no stderr."""
    (tmp_path / "train.py").write_text(dedent(EVERYTHING))
    commands = ((sys.executable, "train.py", "train.py"), (*HOOKCLI, "train.py", "record.jsonl"))
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, cwd=tmp_path, env=ENV, stdout=pipe, stderr=pipe) for command in commands]
    (out, err), (seen_out, seen_err) = (process.communicate(timeout=120) for process in both)
    assert err == b"" and seen_out == out and [process.returncode for process in both] == [5, 5]
    told = seen_err.decode().splitlines()
    assert len(told) == 1 and told[0].startswith("hookcli: warning: can't write ") and "File too large" in told[0]
    record = read_record(tmp_path / "record.jsonl")
    assert [w.step for w in record.entries][:4] == [0, 2, 4, 6] and {w.model for w in record.entries} == {"Sequential"}


ENDLESS = TRAIN.replace("range(5)", "iter(int, 1)").replace(
    "optimizer.step()", "optimizer.step(); print('.', flush=True)"
)


def test_a_script_that_is_killed_leaves_a_record(tmp_path: Path) -> None:
    running = []
    for how in (signal.SIGKILL, signal.SIGTERM):
        folder = tmp_path / how.name
        folder.mkdir()
        (folder / "train.py").write_text(dedent(ENDLESS))
        running.append(
            (how, folder, subprocess.Popen((*HOOKCLI, "train.py"), cwd=folder, env=ENV, stdout=-1, stderr=-1))
        )
    for how, folder, process in running:
        assert process.stdout
        for _ in range(4):
            process.stdout.readline()
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
        assert process.returncode == -how and err == b""
        record = read_record(folder / "record.jsonl")
        assert record.end is None and [w.step for w in record.entries][:2] == [0, 2]


THREADS = """
    import atexit, sys, time
    from concurrent.futures import ThreadPoolExecutor
    from threading import Thread
    pool = ThreadPoolExecutor(2)  # whose threads wait for Python to end them
    pool.submit(print, "pool", flush=True).result()
    atexit.register(print, "exit handler", file=sys.stderr)
    Thread(target=lambda: (time.sleep(0.2), print("thread", file=sys.stderr))).start()
    1 / 0
    """


def test_a_script_is_over_when_its_threads_and_exit_handlers_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(THREADS))
    done = subprocess.run((*HOOKCLI, "train.py"), cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "pool\n")
    error, thread, handler, summary, _ = done.stderr.splitlines()[-5:]
    assert error.startswith("ZeroDivisionError") and (thread, handler) == ("thread", "exit handler")
    assert summary.startswith("hookcli: train.py: ") and "exit code 1" in summary
    end = lines(str(tmp_path / "record.jsonl"))[-1]
    assert end["line"] == "end" and end["exit_code"] == 1 and end["seconds"] > 0.2


def test_a_script_without_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print('torch' in sys.modules)")
    done = subprocess.run((*HOOKCLI, "train.py"), cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "False\n") and "torch was never imported" in done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_import_the_script_anew(method: str, tmp_path: Path) -> None:
    """They find it by what `__main__` says of itself, and none of them is looked at, or leaves a record."""
    text = f"""
        import multiprocessing, sys
        from concurrent.futures import ProcessPoolExecutor

        def work(x):
            return x * x, __name__, sorted(name for name in sys.modules if name.startswith("hookcli.record.observe"))

        if __name__ == "__main__":
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context({method!r})) as pool:
                print(list(pool.map(work, range(3))))
        """
    (tmp_path / "train.py").write_text(dedent(text))
    command = (*HOOKCLI[:4], "train.py")
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{[(x * x, '__mp_main__', []) for x in range(3)]}\n")
    assert done.stderr.count("hookcli: ") == 1 and not list(tmp_path.glob("*.jsonl"))


def test_an_interrupt_ends_the_process_as_it_ends_python_also_with_a_summary(tmp_path: Path) -> None:
    text = "import os, signal, torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "train.py").write_text(text)
    run = partial(subprocess.run, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    plain, ours = run((sys.executable, "train.py")), run((*HOOKCLI[:4], "train.py"))
    assert plain.returncode == ours.returncode == -signal.SIGINT
    assert "KeyboardInterrupt (exit code 130); 1 recorded step in train.run.jsonl" in ours.stderr
