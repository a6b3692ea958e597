"""`hookcli run` of programs of several processes: launchers, children that train, shell scripts, other Pythons."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import forks
import pytest
from commands.trained import PAIR, TRAIN, lines
from record.launching.support import ENV
from support import swept

RUN = (sys.executable, "-m", "hookcli", "run", "--every", "2")


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forks.run((*RUN, *arguments), cwd=folder, env=ENV | environment, capture_output=True, text=True, timeout=120)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jsonl"))


DDP = TRAIN.replace("model = ", "torch.distributed.init_process_group('gloo')\nmodel = ").replace(
    "optimizer =", "model = nn.parallel.DistributedDataParallel(model)\noptimizer ="
)


def test_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(DDP.replace("\nmodel", "\n    model").replace("\noptim", "\n    optim")))
    torchrun = tmp_path / "bin" / "torchrun"  # as pip makes it, with forks as processes
    torchrun.parent.mkdir()
    torchrun.write_text(f'#!/bin/sh\nexec {forks.python()} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    path = f"{torchrun.parent}{os.pathsep}{os.environ['PATH']}"
    ran = run(tmp_path, "torchrun", "--nproc-per-node", "2", "train.py", "a", PATH=path)
    assert ran.returncode == 0 and ran.stdout.count("['a']") == 2, ran.stderr
    assert names(tmp_path) == ["train.run/rank0.jsonl", "train.run/rank1.jsonl"]
    announced, summary = [line for line in ran.stderr.splitlines() if line.startswith("hookcli: ")]
    assert announced.startswith("hookcli: recording in ") and "rank" in announced
    assert summary.startswith("hookcli: train.py, rank 0 of 2: ") and "5 steps of 1 model in " in summary
    assert summary.endswith("3 recorded steps in train.run")
    for rank in (0, 1):
        found = lines(str(tmp_path / "train.run" / f"rank{rank}.jsonl"))
        assert (found[0]["rank"], found[0]["ranks"], found[-1]["line"]) == (rank, 2, "end")
    shown = forks.run(
        (*RUN[:3], "show", "train.run"), cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0 and re.search(r"train.py on 2 ranks: 5 steps .*, loss \S+ → \S+", shown.stderr)


@pytest.mark.sweep
def test_a_script_that_starts_the_other_rank_itself(tmp_path: Path) -> None:
    """As Lightning does: the ranks are programs of their own, and belong together all the same."""
    (tmp_path / "train.py").write_text(PAIR)
    ran = run(tmp_path, "train.py", PYTHONPATH=f"{ENV['PYTHONPATH']}:{ENV['PYTHONPATH']}/tests")
    assert ran.returncode == 0 and names(tmp_path) == ["train.run/rank0.jsonl", "train.run/rank1.jsonl"], ran.stderr
    assert next(line for line in ran.stderr.splitlines() if " steps of 1 model in " in line).endswith("in train.run")


SPAWNS = """
    import torch, torch.distributed as dist, torch.multiprocessing as mp
    from torch import nn

    def train(rank, size, store):
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        dist.destroy_process_group()

    if __name__ == "__main__":
        for size in (2, 3):
            mp.start_processes(train, (size, f"file://FOLDER/{size}"), nprocs=size, start_method="fork")
    """


@pytest.mark.sweep
def test_a_script_that_starts_ranks_twice(tmp_path: Path) -> None:
    """The second launch has more ranks: its last rank finds no part with its number in the first launch's folder."""
    (tmp_path / "train.py").write_text(dedent(SPAWNS.replace("FOLDER", str(tmp_path))))
    ran = run(tmp_path, "train.py")
    parts = {"train": 2, "train-2": 3}
    assert sorted(names(tmp_path)) == sorted(f"{n}.run/rank{r}.jsonl" for n, s in parts.items() for r in range(s)), ran
    for name, size in parts.items():
        assert {lines(str(tmp_path / f"{name}.run" / f"rank{r}.jsonl"))[0]["ranks"] for r in range(size)} == {size}
        assert "1 step of 1 model in " in ran.stderr and f"in {name}.run\n" in ran.stderr


@pytest.mark.sweep
def test_a_script_that_executes_itself_again(tmp_path: Path) -> None:
    again = f"import os, sys, torch\nif sys.argv[1:]: os.execv({forks.python()!r}, [sys.executable, sys.argv[0]])\n"
    (tmp_path / "train.py").write_text(again + dedent(TRAIN))
    ran = run(tmp_path, "train.py", "again")
    assert ran.returncode == 0 and names(tmp_path) == ["train.run.jsonl"], ran.stderr
    assert "hookcli: train.py: 5 steps of 1 model" in ran.stderr


HOGWILD = """
    import sys, torch
    from torch import nn
    import torch.multiprocessing as mp

    def train(seed, model):
        torch.manual_seed(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()

    if __name__ == "__main__":
        model = nn.Linear(4, 1).share_memory()
        context = mp.get_context(sys.argv[1])
        children = [context.Process(target=train, args=(seed, model)) for seed in range(int(sys.argv[2]))]
        for child in children: child.start()
        for child in children: child.join()
        if sys.argv[3:]: train(2, model)
        print([child.pid for child in children if not child.exitcode])
    """


@pytest.mark.parametrize(
    ("method", "count", "itself"),
    [
        swept("fork", 2, True),
        ("fork", 2, False),
        swept("spawn", 2, True),
    ],
)
def test_children_that_train_have_parts_of_their_own(method: str, count: int, itself: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(HOGWILD))
    command = (*RUN, "train.py", method, str(count), *(["too"] if itself else []))
    ran = forks.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=120)
    parts = [f"train.run/child-{pid}.jsonl" for pid in sorted(eval(ran.stdout))]
    assert len(parts) == count and sorted(names(tmp_path)) == [*(["train.run.jsonl"] if itself else []), *parts], (
        ran.stderr
    )
    trained = "1 child process trained" if count == 1 else "2 child processes trained"
    assert f"{trained}; recorded in train.run/" in ran.stderr
    for name in parts:
        found = lines(str(tmp_path / name))
        assert [line["step"] for line in found if line["line"] == "step"] == [0, 2] and found[-1]["line"] == "end"


LOADERS = """
    import sys, torch
    from torch.utils.data import DataLoader

    class Data(torch.utils.data.Dataset):
        def __init__(self): self.net = torch.nn.Linear(4, 4)
        def __len__(self): return 4
        def __getitem__(self, index): return self.net(torch.ones(4)).detach()

    if __name__ == "__main__":
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in DataLoader(Data(), num_workers=1, multiprocessing_context=sys.argv[1]):
            model(batch).sum().backward()
            optimizer.step()
    """


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["fork", swept("spawn")])
def test_data_loader_workers_record_nothing(method: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(dedent(LOADERS))
    ran = run(tmp_path, "train.py", method)
    assert ran.returncode == 0 and names(tmp_path) == ["train.run.jsonl"]
    assert "train.py: 4 steps of 1 model" in ran.stderr and "child" not in ran.stderr


@pytest.mark.sweep
def test_a_shell_script_that_trains_twice(tmp_path: Path) -> None:
    """With children, which train first."""
    (tmp_path / "train.py").write_text(dedent(HOGWILD))
    line = f"{forks.python()} train.py fork 1 too"
    (tmp_path / "both.sh").write_text(f"{line}; {line}\n")
    ran = run(tmp_path, "sh", "both.sh")
    first, second = (
        [f"both{number}.run/child-{pid}.jsonl" for pid in eval(pids)]
        for number, pids in zip(("", "-2"), ran.stdout.splitlines(), strict=True)
    )
    assert names(tmp_path) == sorted(["both-2.run.jsonl", "both.run.jsonl", *first, *second]), ran.stderr
    assert ran.stderr.count("hookcli: both.sh: 4 steps") == 2
    assert "recorded in both.run/" in ran.stderr and "recorded in both-2.run/" in ran.stderr


def test_a_command_without_python(tmp_path: Path) -> None:
    ran = run(tmp_path, "true")
    assert (ran.returncode, ran.stdout, ran.stderr, list(tmp_path.iterdir())) == (0, "", "", [])


def test_scripts_that_are_commands(tmp_path: Path) -> None:
    for name, line in (("tool", f"#!{sys.executable}"), ("tool-I", f"#!{sys.executable} -I")):
        (tmp_path / name).write_text(f"{line}\nimport sys\nprint(sys.argv, sys.flags.isolated)\n")
        (tmp_path / name).chmod(0o755)
    ran = run(tmp_path, "./tool", "a")
    assert (ran.returncode, ran.stdout) == (0, "['./tool', 'a'] 0\n") and "torch was never imported" in ran.stderr
    ran = run(tmp_path, "tool-I", "a")
    assert (ran.returncode, ran.stdout) == (0, "['./tool-I', 'a'] 1\n") and names(tmp_path) == []
    assert ran.stderr.startswith("hookcli: warning: python") and "-I ignores PYTHONPATH" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_python_without_hookcli_says_so_once_it_imports_torch(tmp_path: Path) -> None:
    """Another Python: a copy of this one's, whose prefix differs, with a torch of its own and no hookcli."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    python = str(tmp_path / "other" / "bin" / "python")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "torch.py").write_text("")
    (tmp_path / "train.py").write_text("import sys\nprint('hookcli' in sys.modules)\nimport torch\nprint('on')\n")
    sealed = "import os, sys; os.environ['PYTHONPATH'] += ':lib'; sys.path.insert(0, {root!r})"
    code = f"{sealed.format(root=ENV['PYTHONPATH'])}; from hookcli.__main__ import entry; entry()"
    command = [sys.executable, "-c", code, "run", python, "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=ENV | {"PYTHONPATH": ""}, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "False\non\n"), ran.stderr
    assert ran.stderr == f"hookcli: warning: {python} has no hookcli: what it runs is not recorded\n"
    assert names(tmp_path) == []


def test_under_torchrun_it_says_where_to_put_it(tmp_path: Path) -> None:
    values = dict.fromkeys(("RANK", "LOCAL_RANK"), "0") | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    (tmp_path / "train.py").write_text("print('ran')")
    ran = run(tmp_path, "train.py", TORCHELASTIC_RUN_ID="none", **values)
    assert (ran.returncode, ran.stdout) == (2, "") and "hookcli run torchrun ... train.py" in ran.stderr
