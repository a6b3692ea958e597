"""`hookcli run` as a process: signals, threads, workers and forks."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from textwrap import dedent

import forks
import pytest
from commands.trained import TRAIN, lines
from record.launching.support import ENV
from support import swept

from hookcli.record.file.reading import read_record

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


@pytest.mark.sweep
@pytest.mark.parametrize("fresh", [False, swept(True)])
def test_all_that_scripts_do_in_one(tmp_path: Path, fresh: bool) -> None:
    """Environment variables before torch, workers, forks, a folder that is gone, a full disk, no stderr."""
    text = EVERYTHING if fresh else EVERYTHING.replace('assert "torch" not in sys.modules', "")
    (tmp_path / "train.py").write_text(dedent(text))
    commands = ((sys.executable, "train.py", "train.py"), (*HOOKCLI, "train.py", "record.jsonl"))
    pipe = subprocess.PIPE
    env = ENV | {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # since Python 3.12, of a fork beside other threads
    both = [forks.Popen(command, fresh=fresh, cwd=tmp_path, env=env, stdout=pipe, stderr=pipe) for command in commands]
    (out, err), (seen_out, seen_err) = (process.communicate(timeout=120) for process in both)
    assert err == b"" and seen_out == out and [process.returncode for process in both] == [5, 5]
    told = seen_err.decode().splitlines()
    assert told[0] == f"hookcli: recording in {tmp_path / 'record.jsonl'}" and len(told) == 2
    assert told[1].startswith("hookcli: warning: can't write ") and "File too large" in told[1]
    record = read_record(tmp_path / "record.jsonl")
    assert [w.step for w in record.entries][:4] == [0, 2, 4, 6] and {w.model for w in record.entries} == {"Sequential"}


ENDLESS = TRAIN.replace("range(5)", "iter(int, 1)").replace(
    "optimizer.step()", "optimizer.step(); print('.', flush=True)"
)


@pytest.mark.sweep
def test_a_script_that_is_killed_leaves_a_record(tmp_path: Path) -> None:
    running = []
    for how in (signal.SIGKILL, signal.SIGTERM):
        folder = tmp_path / how.name
        folder.mkdir()
        (folder / "train.py").write_text(dedent(ENDLESS))
        running.append((how, folder, forks.Popen((*HOOKCLI, "train.py"), cwd=folder, env=ENV, stdout=-1, stderr=-1)))
    for how, folder, process in running:
        assert process.stdout
        for _ in range(4):
            process.stdout.readline()
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
        named = f"hookcli: recording in {folder / 'record.jsonl'}\n"  # there is no summary to name it
        assert process.returncode == -how and err.decode() == named
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


@pytest.mark.sweep
def test_a_script_is_over_when_its_threads_and_exit_handlers_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(THREADS))
    done = forks.run((*HOOKCLI, "train.py"), cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "pool\n")
    error, thread, handler, summary, _ = done.stderr.splitlines()[-5:]
    assert error.startswith("ZeroDivisionError") and (thread, handler) == ("thread", "exit handler")
    assert summary.startswith("hookcli: train.py: ") and "exit code 1" in summary
    end = lines(str(tmp_path / "record.jsonl"))[-1]
    assert end["line"] == "end" and end["exit_code"] == 1 and end["seconds"] > 0.2


def test_a_script_without_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print('torch' in sys.modules)")
    done = forks.run(
        (*HOOKCLI, "train.py"), fresh=True, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "False\n") and "torch was never imported" in done.stderr


@pytest.mark.parametrize("method", [*map(swept, ("spawn", "forkserver"))])
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
    done = forks.run(command, fresh=True, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{[(x * x, '__mp_main__', []) for x in range(3)]}\n")
    assert done.stderr.count("hookcli: ") == 1 and not list(tmp_path.glob("*.jsonl"))


@pytest.mark.sweep
def test_an_interrupt_ends_the_process_as_it_ends_python_also_with_a_summary(tmp_path: Path) -> None:
    text = "import os, signal, torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "train.py").write_text(text)
    run = partial(forks.run, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    plain, ours = run((sys.executable, "train.py")), run((*HOOKCLI[:4], "train.py"))
    assert plain.returncode == ours.returncode == -signal.SIGINT
    assert "KeyboardInterrupt (exit code 130); 1 recorded step in train.run.jsonl" in ours.stderr


@pytest.mark.sweep
def test_an_interrupt_while_the_record_ends_loses_nothing_and_prints_no_traceback(tmp_path: Path) -> None:
    interrupted = """
        import os, signal, torch
        from hookcli.hooks import clock

        def interrupted(measure=clock.seconds_outside):
            os.kill(os.getpid(), signal.SIGINT)
            return measure()

        clock.seconds_outside = interrupted
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
        """
    (tmp_path / "train.py").write_text(dedent(interrupted))
    ran = forks.run((*HOOKCLI, "train.py"), cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "Traceback" not in ran.stderr
    record = read_record(tmp_path / "record.jsonl")
    assert record.end is not None and record.end.models[0]["recorded_steps"] == 1


SUITE = """
    import subprocess, sys
    import pytest
    import torch
    from torch import nn

    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    def test_that_reads_the_streams(capfd):
        train()
        print("mine", file=sys.stderr)
        assert capfd.readouterr() == ("", "mine\\n")

    def test_of_another_process(capfd):
        ran = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", "mine\\n")

    if __name__ == "__main__":
        train()
        print("mine", file=sys.stderr)
        sys.exit(3)
    """


@pytest.mark.sweep
def test_a_test_suite_that_reads_stderr_passes_quietly(tmp_path: Path) -> None:
    (tmp_path / "test_net.py").write_text(dedent(SUITE))
    command = (*HOOKCLI[:4], "--every", "1", "-q", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_net.py")
    ran = forks.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "") and "2 passed" in ran.stdout, ran.stdout
    found = [read_record(path) for path in tmp_path.glob("*.run.jsonl")]
    assert sorted(len(record.entries) for record in found) == [3, 3]


FAILS_IN_CHILD = """
    import os
    import torch
    from hookcli.record import process_recording

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    process_recording.ProcessSink = lambda *args, **options: 1 / 0
    child = os.fork()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if child:
        assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_that_hookcli_can_t_record_runs_on_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(FAILS_IN_CHILD))
    ran = forks.run([*HOOKCLI, "train.py"], cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    warning = "hookcli: warning: hookcli failed in a child process (ZeroDivisionError: division by zero)"
    assert ran.returncode == 0 and ran.stderr.splitlines().count(warning) == 1, ran.stderr
    assert len(read_record(tmp_path / "record.jsonl").entries) == 1
