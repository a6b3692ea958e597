"""Scripts that compile, under `hookcli run`: the same bits as without it, and a summary of the compiler's work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import forks
import pytest
import torch
from record.launching.support import ENV
from support import needs_inductor, swept

from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.reading import read_record

SCRIPT = """
import sys, torch
from torch import nn
how, letters = sys.argv[1], int(sys.argv[2])

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.text = ""

    def forward(self, x):
        h = self.first(x).relu()
        if len(self.text) < letters:
            self.text = self.text + "x"
        if h.sum() > 0:  # branch
            h = h + 1
        print(end="")  # print
        return self.last(h)

torch.manual_seed(0)
net = step = Net()
if how == "outer":
    step = torch.compile(net, backend="aot_eager")
if how == "in place":
    net.compile(backend="aot_eager")

def loss_of(x):
    return step(x).square().mean()

if how == "function":
    loss_of = torch.compile(loss_of, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for number in range(12):
    x = torch.randn(4 + (number > 5), 8)
    optimizer.zero_grad()
    loss_of(x).backward()
    optimizer.step()
torch.save(net.state_dict(), "weights.pt")
if how != "plain":
    from torch._dynamo import utils
    print({key: dict(utils.counters[key]) for key in ("graph_break", "stats")}, utils._compilation_metrics.maxlen)
"""
WITHOUT = """
import sys, torch
with torch.no_grad():
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
print("torch._dynamo" in sys.modules)
"""


def python(folder: Path, *argv: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """Run Python: in a fork, which has imported torch.compile, or `fresh`, where the script is the first to do so."""
    command = [sys.executable, *argv]
    return forks.run(command, fresh=fresh, cwd=folder, env=ENV, capture_output=True, text=True, timeout=300)


def run(folder: Path, *argv: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "hookcli", *argv, fresh=fresh)


def line(mark: str) -> str:
    number = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith(f"# {mark}"))
    return f"train.py:{number}"


@pytest.mark.parametrize(("how", "fresh"), [swept("outer", True), swept("in place", False), swept("function", False)])
def test_the_run_is_the_same_and_its_summary_tells_of_the_compiler(tmp_path: Path, how: str, fresh: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    alone = python(tmp_path, "train.py", how, "0", fresh=fresh)
    weights = torch.load(tmp_path / "weights.pt")
    ran = run(tmp_path, "run", "--every", "3", "train.py", how, "0", fresh=fresh)
    assert ran.returncode == alone.returncode == 0, ran.stderr
    assert ran.stdout == alone.stdout  # PyTorch's counters and settings among it
    recorded = torch.load(tmp_path / "weights.pt")
    assert all(torch.equal(weights[name], recorded[name]) for name in weights) and weights.keys() == recorded.keys()
    (told,) = [text for text in ran.stderr.splitlines() if text.startswith("compiled: ")]
    assert f"2 graph breaks ({line('branch')} `if h.sum() > 0:" in told and f'{line("print")} `print(end="")' in told
    assert "x.size(0) was 4, is 5" in told and "% of the run" in told
    record = read_record(tmp_path / "train.run.jsonl")
    assert record.end is not None and record.end.compilation is not None
    made = record.end.compilation
    assert f"{made.graphs} graphs, " in told and made.complete and 0 < made.seconds < record.end.seconds
    page = RecordPage(record)
    page.take()
    assert page.payload()["steps"]["notes"][0] == told
    shown = run(tmp_path, "show", "train.run.jsonl", "--probe", "compiled", "--format", "json")
    findings = json.loads(shown.stdout)["reports"][0]["findings"]
    assert {(one["check"], one["line"]) for one in findings if one["check"] in ("HK039", "HK041")} == {
        ("HK039", int(line(mark).rpartition(":")[2])) for mark in ("branch", "print")
    }


IN_GROUP = pytest.mark.xdist_group("torch.compile")  # which shares precompiled headers


@pytest.mark.parametrize(
    "backend", [swept("aot_eager"), pytest.param("inductor", marks=[needs_inductor, IN_GROUP, pytest.mark.sweep])]
)
def test_modules_inside_are_recorded_and_the_weights_are_the_same(tmp_path: Path, backend: str) -> None:
    """In float32, in every step; what is said of the compiler is of the script's own programs."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("aot_eager", backend))
    alone = python(tmp_path, "train.py", "outer", "0")
    weights = torch.load(tmp_path / "weights.pt")
    ran = run(tmp_path, "run", "--every", "1", "--inside-compiled", "train.py", "outer", "0")
    assert ran.returncode == alone.returncode == 0, ran.stderr
    recorded = torch.load(tmp_path / "weights.pt")
    assert all(torch.equal(weights[name], recorded[name]) for name in weights) and weights.keys() == recorded.keys()
    (told,) = [text for text in ran.stderr.splitlines() if text.startswith("compiled: ")]
    assert "2 graph breaks (" in told and "x.size(0) was 4, is 5" in told
    said = f"Net: inside compiled, by {backend}: outputs and gradients bit-identical"
    assert len([text for text in ran.stderr.splitlines() if text.startswith(said)]) == 1
    shown = run(tmp_path, "show", "train.run.jsonl", "--step", "11", "--probe", "activations", "--format", "json")
    (report,) = json.loads(shown.stdout)["reports"]
    assert {row["fqn"] for row in report["rows"]} == {"", "first", "last"} and said[22:] in report["meta"]["compiled"]


@pytest.mark.sweep
def test_a_script_that_compiles_nothing_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITHOUT)
    ran = run(tmp_path, "run", "train.py", fresh=True)
    assert ran.stdout == "False\n" and "compiled" not in ran.stderr
    end = read_record(tmp_path / "train.run.jsonl").end
    assert end is not None and end.compiled == {} and end.compilation is None
    ran = run(tmp_path, "run", "--inside-compiled", "train.py")
    assert ran.returncode == 0 and "no recorded model is compiled" in ran.stderr


@pytest.mark.parametrize(
    ("how", "letters", "code"), [swept("outer", "0", 0), ("outer", "99", 1), swept("in place", "99", 1)]
)
def test_checks_warn_and_fail_for_the_limit_alone(tmp_path: Path, how: str, letters: str, code: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace('"aot_eager"', '"eager"'))
    ran = run(tmp_path, "run", "--check", "train.py", how, letters)
    assert ran.returncode == code, ran.stderr
    found = [text.split()[:2] for text in ran.stderr.splitlines() if text.startswith("HK")]
    assert [check for check, severity in found if severity == "error"] == ["HK041"] * code
    assert [check for check, severity in found if severity == "warning"].count("HK039") == 2
    (told,) = [text for text in ran.stderr.splitlines() if text.startswith("compiled: ")]
    assert "2 graph breaks, " in told  # whose lines the findings name
    if code:
        assert "runs uncompiled" in ran.stderr.splitlines()[-1] and "self.text == " in ran.stderr.splitlines()[-1]


def test_a_record_whose_compilations_are_not_what_they_should_be_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITHOUT)
    run(tmp_path, "run", "train.py")
    path = tmp_path / "train.run.jsonl"
    *lines, end = path.read_text().splitlines()
    for wrong in ({"graphs": "x"}, {"breaks": [{"place": 3}]}, {"eager": [[]]}, {"recompiled": "no"}, [], 3):
        path.write_text("\n".join([*lines, json.dumps(json.loads(end) | {"compiled": wrong})]) + "\n")
        assert read_record(path).end is None and "damaged" in str(read_record(path).damage())
    later = {"graphs": 2, "seconds": 1.0, "of_a_later_version": [1]}
    path.write_text("\n".join([*lines, json.dumps(json.loads(end) | {"compiled": later})]) + "\n")
    read = read_record(path).end
    assert read is not None and read.compilation is not None and read.compilation.graphs == 2
