"""hookcli hooks: what a model carries, from the command line, with nothing run."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from support import hooks_on, swept, untouched

Cli = Callable[..., Any]

HOOKED = """
import torch
from torch import nn

def note(*a): pass

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        print("building")
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.first.register_forward_hook(self.watch, with_kwargs=True)
        self.second.register_backward_hook(lambda *a: None)
        weight = nn.Parameter(torch.ones(4))
        weight.register_hook(note)
        self.scale = weight
        self.register_full_backward_hook(note).remove()

    def watch(self, *a): pass

    def forward(self, x):
        raise AssertionError("it was run")

class Reads(Net):
    def __init__(self):
        super().__init__()
        assert torch.linspace(0, 1, 4).tolist()

ready = Net()
"""


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hooked.py").write_text(HOOKED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(HOOKED.splitlines(), 1) if text in line)


def report(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)["reports"][0]


@pytest.mark.parametrize("spec", ["hooked.py:Net", "hooked.py:Reads", "hooked.py:ready"])
def test_every_hook_and_nothing_is_run(cli: Cli, hooked: Path, spec: str) -> None:
    """`Reads` can't be built on meta, and a copy of `ready` would lack its parameter's hook."""
    ran = cli("hooks", spec, "-f", "json")
    found = report(ran)
    keys = ("fqn", "kind", "function", "file", "line", "flags", "legacy")
    assert [tuple(row[key] for key in keys) for row in found["rows"]] == [
        ("", "stale_flag", "_is_full_backward_hook = True", None, None, "", False),
        ("scale", "tensor_grad", "note", "hooked.py", line_of("def note"), "", False),
        ("first", "forward", "Net.watch", "hooked.py", line_of("def watch"), "with_kwargs", False),
        ("second", "backward", "Net.__init__.<locals>.<lambda>", "hooked.py", line_of("lambda"), "", True),
    ]
    assert found["totals"] == {"hooks": 3, "legacy": 1, "modules": 2, "stale_flags": 1}
    assert found["probe"] == "hooks" and found["model"] == spec and found["meta"]["torch"]
    assert "building" in ran.err  # what the model prints stays off stdout


def test_the_table_names_file_and_line_and_explains_below(cli: Cli, hooked: Path) -> None:
    ran = cli("hooks", "hooked.py:Net")
    row = next(line for line in ran.out.splitlines() if line.startswith("second"))
    assert row.split() == [
        "second", "Linear", "backward", "Net.__init__.<locals>.<lambda>", f"hooked.py:{line_of('lambda')}", "legacy",
    ]  # fmt: skip
    assert "\nsecond: deprecated, and sees the last operation's gradients only: use register_full_backward" in ran.out
    assert "3 hooks · 1 legacy · 2 modules · 1 stale flag" in ran.out
    assert "Line " not in ran.out.splitlines()[1]
    notes = cli("hooks", "hooked.py:Net", "--columns", "fqn,note").out
    assert notes.count("deprecated") == 1 and "second   deprecated" in notes


@pytest.mark.sweep
def test_deep_models_show_each_hook(cli: Cli, hooked: Path) -> None:
    (hooked / "deep.py").write_text(
        "from torch import nn\n"
        "def deep():\n"
        "    model = nn.Sequential(nn.Sequential(*(nn.Sequential(nn.ReLU()) for _ in range(200))))\n"
        "    for part in model.modules():\n"
        "        part.register_forward_hook(print)\n"
        "    return model\n"
    )
    assert cli("hooks", "deep.py:deep").out.count("(built in)") == 402


def test_csv_and_markdown(cli: Cli, hooked: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("hooks", "hooked.py:Net", "-f", "csv").out)))
    assert [row["legacy"] for row in rows] == ["False", "False", "False", "True"]
    assert rows[1]["line"] == str(line_of("def note"))
    out = cli("hooks", "hooked.py:Net", "-f", "markdown").out
    assert f"hooked.py:{line_of('def watch')} | with_kwargs |" in out and "\nsecond: deprecated" in out


def test_narrowed(cli: Cli, hooked: Path) -> None:
    assert [r["fqn"] for r in report(cli("hooks", "hooked.py:Net", "--match", "scale", "-f", "json"))["rows"]] == [
        "scale"
    ]
    by_type = report(cli("hooks", "hooked.py:Net", "--type", "Linear", "-f", "json"))["rows"]
    assert [r["fqn"] for r in by_type] == ["first", "second"]
    ran = cli("hooks", "hooked.py:Net", "--match", "first.weight")
    assert ran.code == 0 and ran.out.endswith("\nhooked.py:Net has no hooks on the selected modules\n")


def test_a_ready_model_is_left_as_it_is(cli: Cli, hooked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its package's name, so that the command looks at the very model that is watched here."""
    (hooked / "kept_here.py").write_text(HOOKED)
    monkeypatch.syspath_prepend(hooked)
    model = import_module("kept_here").ready
    before = hooks_on(model)
    assert before["_forward_hooks"] == 1 and before["parameter_backward_hooks"] == 1
    with untouched(model), torch.random.fork_rng():  # the command seeds its process
        assert report(cli("hooks", "kept_here:ready", "-f", "json"))["totals"]["hooks"] == 3
    assert sys.modules.pop("kept_here").ready is model


@pytest.mark.sweep
def test_no_hooks_is_said(cli: Cli) -> None:
    ran = cli("hooks")
    assert (ran.code, ran.err) == (0, "") and ran.out.splitlines()[-1] == "resnet50 has no hooks"
    assert "Layer" not in ran.out and "0 hooks" not in ran.out
    ran = cli("hooks", "-f", "json")
    assert report(ran)["rows"] == [] and ran.err == "hookcli: resnet50 has no hooks\n"
    assert cli("hooks", "-f", "csv", "--quiet").err == ""


FAST = [n for n in torchvision.models.list_models() if n.startswith(("resnet", "vgg", "raft", "swin_v2", "quantized"))]


@pytest.mark.parametrize("name", [name if name == "resnet18" else swept(name) for name in FAST])
def test_torchvisions_models_carry_none(cli: Cli, name: str) -> None:
    assert report(cli("hooks", name, "-f", "json"))["totals"]["hooks"] == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("resnet5",), "unknown model 'resnet5'; did you mean resnet50"),
        (("hooked.py:Nett",), "hooked.py: unknown name 'Nett'"),
        (("hooked.py:Net", "--match", "frst"), "no module or parameter matches 'frst'; did you mean 'first"),
        (("hooked.py:Net", "--type", "Liner"), "unknown --type 'Liner'; did you mean Linear?"),
        (("hooked.py:Net", "--columns", "fqn,functon"), "unknown column 'functon'; did you mean function?"),
        (("hooked.py:Net", "--sort", "knd"), "--sort: unknown column 'knd'"),
        (("hooked.py:Net", "--arg", "width=3"), "unknown argument of hooked.py:Net 'width'"),
        (("hooked.py:ready", "--arg", "width=3"), "is a module, not a function: remove --arg"),
        (("hooked.py:note",), "hooked.py:note returned NoneType, not an nn.Module"),
        (("hooked.py:Net", "--weights", "no.pt"), "--weights: no file 'no.pt'"),
        (("hooked.py:Net", "--weights", "DEFAULT"), "this model has no published weights"),
        (("hooked.py:Net", "--input", "1x4"), "unknown option '--input'"),
    ],
)
def test_mistakes(cli: Cli, hooked: Path, argv: tuple[str, ...], said: str) -> None:
    ran = cli("hooks", *argv)
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err and ran.out == ""
