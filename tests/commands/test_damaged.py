"""Damaged records, reports and baselines: what is whole is shown, the rest is named, never with a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from mutations import mutated_document, mutated_lines
from safetensors.torch import save_file
from support import swept
from torch import nn

import hookcli
from hookcli.cli import main
from hookcli.diff.baseline import read_baselines
from hookcli.engine import checking
from hookcli.errors import UsageError
from hookcli.probes.base import Probe
from hookcli.registry import load

pytestmark = [pytest.mark.xdist_group("damaged"), pytest.mark.fuzz]  # one set of files

MUTATIONS = int(os.environ.get("HOOKCLI_TEST_MUTATIONS", "6"))  # of each kind of file
FORMATS = ("table", "json", "csv", "markdown")
COMMANDS = {
    "models": "models resnet*",
    "plugins": "plugins",
    "diff": "diff grads.json grads.json",
    "memory": "memory NET",
    "timeline": "memory NET --timeline",
    "fits": "memory NET --fits 64MiB",
    "flow": "flow NET",
    "sweep": "sweep NET --logit 1",
    "hooks": "hooks NET",
    "weights": "weights a.safetensors --spectral",
    "hist": "activations NET --hist",
    "operators": "activations NET --ops",
    "times": "activations NET --time",
    "diff-weights": "diff a.safetensors b.safetensors",
    "diff-models": "diff NET NET --ops",
    "step": "show a.jsonl --step 1",
    "curves": "show a.jsonl --over-time .",
    "optimizer": "show a.jsonl --probe optimizer",
    "diff-records": "diff a.jsonl a.jsonl",
}
NET = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
"""
PROBES = ("activations", "grads", "updates", "check", "settings")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(16, 2)
        self.unused = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.body(x).flatten(1)
        return {"out": self.head(y), "aux": y}


def recorded(path: Path) -> None:
    """Three steps of training, the last with NaN, and a forward without gradients."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcli.watch(model, every=1, output=path, first_bad="report", check=True):
        for step in range(3):
            x = torch.randn(2, 3, 4, 4) * (float("nan") if step == 2 else 1)
            model(x)["out"].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model(torch.randn(2, 3, 4, 4))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real record, real reports of each kind, and a real baseline."""
    folder = tmp_path_factory.mktemp("files")
    recorded(folder / "a.jsonl")
    model, x = Net(), torch.randn(2, 3, 4, 4)
    kinds: list[str | Probe] = ["shapes", "inputs", "activations", "grads", "graph"]
    reports = [hookcli.capture(model, x, [kind]) for kind in kinds]
    reports += [hookcli.capture(model, x, [load("probes", "trace")(summary=summary)]) for summary in (False, True)]
    reports.append([checking.check(model, x, save=str(folder / "baseline.json"), name="net")])
    names = ("shapes", "inputs", "activations", "grads", "graph", "trace", "trace-summary", "check")
    for name, found in zip(names, reports, strict=True):
        document = json.dumps({"schema": 1, "reports": [json.loads(_text(report)) for report in found]})
        (folder / f"{name}.json").write_text(document)
    (folder / "net.py").write_text(NET)
    save_file(model.state_dict(), folder / "a.safetensors")
    save_file({name: x + 1 for name, x in model.state_dict().items()}, folder / "b.safetensors")
    return folder


def write_report(folder: Path, name: str) -> None:
    words = COMMANDS[name]
    argv = [str(folder / word) if Path(word).suffix else word for word in words.split()]
    argv = [word.replace("NET", f"{folder / 'net.py'}:Net") for word in argv]
    argv += ["--input", "2x3x4x4"] if "NET" in words and argv[0] not in ("hooks", "package") else []
    code, _, err = quietly(*argv, "--format", "json", "-o", str(folder / f"{name}.json"))
    assert code < 2, err


def _text(report: hookcli.table.Report) -> str:
    return json.dumps(hookcli.table.strict(report.to_dict()))


def quietly(*argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(argv))
    return code, out.getvalue(), err.getvalue()


def ends_well(*argv: str) -> None:
    """With a report, or with an error that is told."""
    code, _, err = quietly(*argv)
    assert "Traceback" not in err, f"{argv}\n{err}"
    assert code in ((0, 1, 2) if argv[0] == "diff" else (0, 2)), argv
    assert code != 2 or "hookcli: error: " in err, (argv, err)


def seeds(count: int) -> Iterator[random.Random]:
    """Of one mutation each, so that it can be had again."""
    first = int(os.environ.get("HOOKCLI_TEST_SEED", "0"))
    return (random.Random(seed) for seed in range(first, first + count))


def record_views(rng: random.Random) -> list[tuple[str, ...]]:
    """Ways to show a record."""
    format_ = ("--format", rng.choice(FORMATS))
    return [
        format_,
        (*format_, "--over-time", rng.choice((".", "head", "body.0", "head.weight"))),
        ("--over-time", rng.choice((".", "head"))),
        (*format_, "--step", rng.choice("012")),
        (*format_, "--probe", rng.choice(PROBES)),
        ("--sort", rng.choice(("std", "-zeros", "fqn", "ratio"))),
        ("--phase", "no_grad", "--depth", rng.choice(("1", "all"))),
        ("--columns", "fqn,param_grad,calls", "--model", "Net"),
        ("--probe", "check", "--format", rng.choice(("junit", "sarif", "github"))),
    ]


@pytest.mark.sweep
def test_records(files: Path, tmp_path: Path) -> None:
    text = (files / "a.jsonl").read_text()
    path = tmp_path / "b.jsonl"
    for rng in seeds(MUTATIONS):
        path.write_bytes(mutated_lines(text, rng))
        for view in rng.sample(record_views(rng), 3):
            ends_well("show", str(path), *view)


REPORTS = ("shapes", "inputs", "activations", "grads", "graph", "trace", "trace-summary", "check", *COMMANDS)
SPECIAL = {
    "graph": ("dot",),
    "trace": ("chrome",),
    "check": ("junit", "sarif", "github"),
    "flow": ("dot", "html"),
    "memory": ("html",),
    "timeline": ("html", "chart"),
    "hist": ("hist", "html"),
    "times": ("html",),
    "curves": ("html",),
}


# Of columns and totals like those of others.
ALIKE = ("inputs", "memory", "fits", "sweep", "hooks", "operators", "times", "diff-weights", "diff-models", "optimizer")


@pytest.mark.parametrize("kind", [swept(kind) if kind in ALIKE else kind for kind in REPORTS])
def test_reports(files: Path, tmp_path: Path, kind: str) -> None:
    if kind in COMMANDS:
        write_report(files, kind)
    whole, path = files / f"{kind}.json", tmp_path / "b.json"
    for name in (*FORMATS, *SPECIAL.get(kind, ())):
        assert quietly("show", str(whole), "--format", name)[0] == 0
    for rng in seeds(MUTATIONS // 3):
        path.write_bytes(mutated_document(whole.read_text(), rng))
        for name in (*FORMATS, *SPECIAL.get(kind, ())):
            ends_well("show", str(path), "--format", name)
        ends_well("show", str(path), "--depth", "1", "--sort", rng.choice(("fqn", "-l2", "type", "name", "kept")))
        ends_well("diff", *rng.sample((str(whole), str(path)), 2), "--format", rng.choice(FORMATS))
        ends_well("diff", str(path), str(path))


def test_baselines(files: Path, tmp_path: Path) -> None:
    """As `check --against` reads and uses them, without a run each."""
    whole = (files / "baseline.json").read_text()
    model = read_baselines(str(files / "baseline.json")).models["net"]
    path = tmp_path / "b.json"
    for rng in seeds(MUTATIONS):
        path.write_bytes(mutated_document(whole, rng))
        said, found = "", None
        try:
            found = read_baselines(str(path)).of("net")
            found.require_same_run(model.run)
            found.notes(model.reports, model.run)
            found.changes(model.reports)
        except UsageError as error:
            said = str(error)
        except Exception as error:
            raise AssertionError("".join(traceback.format_exception(error)) + repr(path.read_bytes()[:3000])) from error
        assert said or found
