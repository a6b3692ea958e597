"""hookcli package: every figure read again with `zipfile`, every printed command run as printed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch.package import PackageExporter, PackageImporter

from hookcli.cli import main

Cli = Callable[..., Any]

MINE = """
import io
import sys
import numpy as np
import torch
from torch import nn
from pk_parts import Act

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(3, width)
        self.act = Act()

    def forward(self, x):
        return self.act(self.fc(x))

def named():
    return Net(), {"x": torch.ones(5, 3)}

def lam():
    net = Net()
    net.act.f = lambda x: x
    return net

class Main(Net):
    pass

Main.__module__ = "__main__"
"""
PARTS = "from torch import nn\n\nclass Act(nn.Module):\n    def forward(self, x):\n        return x.relu()\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's own model, as the working directory."""
    (tmp_path / "pk_mine.py").write_text(MINE)
    (tmp_path / "pk_parts").mkdir()
    (tmp_path / "pk_parts" / "__init__.py").write_text("from .act import Act\n")
    (tmp_path / "pk_parts" / "act.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield tmp_path
    forget()


def forget() -> None:
    for name in ("pk_mine", "model", "pk_parts", "pk_parts.act"):
        sys.modules.pop(name, None)


@pytest.fixture
def cli(cli: Cli) -> Cli:
    """Each command line finds the user's modules unloaded, as in a process of its own."""

    def run(*argv: str) -> Any:
        forget()
        return cli(*argv)

    return run


def report(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)["reports"][0]
    return found


def went(found: dict[str, Any], action: str) -> list[str]:
    return [row["module"] for row in found["rows"] if row["action"] == action]


def records(file: Path) -> dict[str, bytes]:
    """The records of a package without the folder that they all are in."""
    with zipfile.ZipFile(file) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def assert_true_to(found: dict[str, Any], file: Path) -> None:
    """Every row and total is what the archive holds."""
    held = records(file)
    sources = {n.removesuffix(".py").removesuffix("/__init__").replace("/", "."): v for n, v in held.items()
               if n.endswith(".py")}  # fmt: skip
    sources.pop("_mock", None)
    rows = {row["module"]: row for row in found["rows"]}
    [pickled] = [name for name in held if name.endswith(".pkl")]
    assert set(went(found, "intern")) | set(went(found, "mock")) == {*sources, f"<{pickled.replace('/', '.')}>"}
    for name, source in sources.items():
        assert rows[name]["size"] == len(source)
    assert rows[f"<{pickled.replace('/', '.')}>"]["size"] == len(held[pickled])
    assert sorted(went(found, "extern")) == sorted(held[".data/extern_modules"].decode().split())
    assert all(rows[name]["size"] is None for name in went(found, "extern"))
    assert sorted(row["index"] for row in found["rows"]) == list(range(len(rows)))
    totals = found["totals"]
    assert totals["archive_bytes"] == file.stat().st_size
    assert totals["tensor_bytes"] == sum(len(v) for n, v in held.items() if n.endswith(".storage"))
    for action in ("intern", "extern", "mock"):
        assert totals.get(action, 0) == len(went(found, action))


def printed(err: str) -> list[str]:
    """The command on the last line of stderr, for `main`."""
    command = shlex.split(err.splitlines()[-1])
    assert command[:2] == ["hookcli", "package"]
    return command[1:]


def test_a_model_computed_by_hand(cli: Cli, mine: Path) -> None:
    argv = ["package", "pk_mine.py:Net", "--intern", "pk_mine", "--intern=pk_parts.**", "--extern", "**"]
    ran = cli(*argv, "-i", "2x3", "-o", "m.pt2pkg", "-f", "json")
    assert ran.code == 0, ran.err
    found = report(ran.out)
    assert set(went(found, "intern")) == {"<model.model.pkl>", "pk_mine", "pk_parts", "pk_parts.act"}
    assert {"sys", "numpy", "torch", "torch.nn.modules.linear"} <= set(went(found, "extern"))
    assert found["totals"]["tensor_bytes"] == 4 * (3 * 4 + 4)
    rows = {row["module"]: row for row in found["rows"]}
    assert rows["pk_mine"]["size"] == len(MINE) and rows["pk_parts.act"]["size"] == len(PARTS)
    assert rows["pk_mine"]["rule"] == "--intern pk_mine" and rows["sys"]["rule"] == "--extern '**'"
    assert rows["pk_parts.act"]["needed_by"] in ("pk_parts", "<model.model.pkl>")
    assert_true_to(found, mine / "m.pt2pkg")
    assert ran.err == f"hookcli: wrote m.pt2pkg: {(mine / 'm.pt2pkg').stat().st_size:,} bytes\n"
    assert not list(mine.glob(".m.pt2pkg*"))


@pytest.mark.parametrize("suffix", [".pt2pkg", ".pt", ".package"])
def test_resnet18_with_its_values(cli: Cli, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"r{suffix}"
    ran = cli("package", "resnet18", "--seed", "3", "--extern", "torchvision.**", "-o", str(file), "-f", "json")
    found = report(ran.out)
    assert ran.code == 0 and found["totals"]["extern"] == 11
    assert_true_to(found, file)
    torch.manual_seed(3)
    expected = torchvision.models.resnet18(weights=None).state_dict()
    loaded = PackageImporter(file).load_pickle("model", "model.pkl")
    assert not loaded.training
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, expected[name])
    # 122 tensors in the state dict, none shared
    assert found["totals"]["tensor_bytes"] == sum(v.numel() * v.element_size() for v in expected.values())


def test_interning_torchvision(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "r.pt2pkg"
    argv = ("--intern", "torchvision.**", "--extern", "**", "-o", str(file), "-f", "json")
    found = report(cli("package", "resnet18", *argv).out)
    assert_true_to(found, file)
    assert "torchvision.models.resnet" in went(found, "intern") and {"sys", "io", "PIL"} <= set(went(found, "extern"))
    source = Path(torchvision.models.resnet.__file__).stat().st_size
    assert next(r for r in found["rows"] if r["module"] == "torchvision.models.resnet")["size"] == source


def test_the_first_pattern_on_the_command_line_decides(cli: Cli, mine: Path) -> None:
    """Typer keeps the order within an option only; here it is the other way round between them."""
    rules = ("--extern", "pk_parts.act", "--intern", "pk_*", "--intern", "pk_parts.**", "--extern", "**")
    found = report(cli("package", "pk_mine.py:Net", *rules, "-o", "m.pt2pkg", "-f", "json").out)
    assert "pk_parts.act" in went(found, "extern") and "pk_parts" in went(found, "intern")
    rules = ("--intern", "pk_*", "--intern", "pk_parts.**", "--extern", "**")
    found = report(cli("package", "pk_mine.py:Net", *rules, "-o", "m.pt2pkg", "-f", "json").out)
    assert "pk_parts.act" in went(found, "intern")


def test_a_mock(cli: Cli, mine: Path) -> None:
    argv = ("--intern", "pk_*", "--intern", "pk_parts.**", "--mock", "numpy.**", "--extern", "sys", "--extern", "io")
    found = report(cli("package", "pk_mine.py:Net", *argv, "-o", "m.pt2pkg", "-f", "json").out)
    assert went(found, "mock") == ["numpy"]
    assert_true_to(found, mine / "m.pt2pkg")
    assert b"MockedObject" in records(mine / "m.pt2pkg")["numpy/__init__.py"]


@pytest.mark.parametrize("model", ["resnet50", "resnet18"])
def test_resnet_passes_as_suggested(cli: Cli, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("package", model, "-f", "json")
    assert ran.code == 2 and went(report(ran.out), "blocked") == ["torchvision.models.resnet"]
    assert f"1 module blocks the export of {model}: torchvision.models.resnet. This works:" in ran.err
    again = cli(*printed(ran.err))
    assert again.code == 0, again.err
    assert report(again.out)["totals"]["extern"] == 11


ATTEMPTS = [
    (),
    ("--intern", "pk_mine"),
    ("--intern", "**"),
    ("--mock", "pk_*", "--extern", "numpy"),
    ("--deny=numpy.**", "--intern", "pk_*", "--extern", "sys", "--extern", "io"),
    ("--extern", "no.such.**"),
]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=" ".join)
@pytest.mark.parametrize("file", ["pk_mine.py", "model.py"])
def test_a_users_own_model_passes_as_suggested(cli: Cli, mine: Path, attempt: tuple[str, ...], file: str) -> None:
    (mine / "pk_mine.py").rename(mine / file)  # a model.py may not share its name with the pickle's folder
    ran = cli("package", f"{file}:Net", *attempt, "-i", "2x3", "-o", "m.pt2pkg", "-f", "json")
    assert ran.code == 2 and went(report(ran.out), "blocked"), ran.err
    said = [line for line in ran.err.splitlines() if "warning: " not in line]  # of numpy's modules, when all are read
    assert len(said) == 2 and not (mine / "m.pt2pkg").exists()
    again = cli(*printed(ran.err))
    assert again.code == 0, again.err
    found = report(again.out)
    assert {Path(file).stem, "pk_parts.act"} <= set(went(found, "intern"))
    assert "pk_parts" in went(found, "mock" if "--mock" in attempt else "intern")
    not_own = ("numpy", "sys") if "**" in attempt else ("numpy", "sys", "io")  # io has a source, if all is wanted
    assert [name for name in went(found, "intern") if name.split(".")[0] in not_own] == []
    assert_true_to(found, mine / "m.pt2pkg")
    loaded = cli("package", "--load", "m.pt2pkg", "--trust", "-f", "json")
    assert [row["output_shape"] for row in report(loaded.out)["rows"]] == [[2, 4]] * 3, loaded.err


def test_it_loads_where_the_users_module_is_not(cli: Cli, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = cli(*printed(cli("package", "pk_mine.py:named", "-o", "m.pt2pkg").err))
    assert again.code == 0
    away = tmp_path_factory.mktemp("away")
    (mine / "m.pt2pkg").rename(away / "m.pt2pkg")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "hookcli", "package", "--load", "m.pt2pkg", "--trust", "--format", "json"]
    ran = subprocess.run(command, cwd=away, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [row["output_shape"] for row in report(ran.stdout)["rows"]] == [[5, 4]] * 3  # its example, by keyword
    missing = [sys.executable, "-c", "import pk_mine"]
    assert subprocess.run(missing, cwd=away, env=environment, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("model", ["resnet18", "ssdlite320_mobilenet_v3_large"])
def test_load_gives_what_shapes_gives(cli: Cli, tmp_path: Path, model: str) -> None:
    file = str(tmp_path / "m.pt2pkg")
    assert cli("package", model, "--extern", "**", "-o", file).code == 0
    loaded, fresh = (
        report(ran.out)
        for ran in (cli("package", "--load", file, "--trust", "-f", "json"), cli("shapes", model, "-f", "json"))
    )
    assert loaded["rows"] == fresh["rows"] and loaded["totals"] == fresh["totals"]
    assert len(loaded["rows"]) > 60 and loaded["model"] == "m.pt2pkg"


def test_load_with_another_input_into_a_file(cli: Cli, tmp_path: Path) -> None:
    file, shapes = str(tmp_path / "m.pt2pkg"), tmp_path / "shapes.json"
    cli("package", "resnet18", "--extern", "**", "-o", file)
    ran = cli("package", "--load", file, "--trust", "-i", "7x3x64x64", "--output", str(shapes))
    assert ran.code == 0 and ran.out == ""
    assert report(shapes.read_text())["rows"][0]["output_shape"] == [7, 1000]
    other = cli("activations", f"package:{file}", "--arg", "trust=true", "-i", "1x3x64x64", "--type", "Linear")
    assert other.code == 0 and "1x1000" in other.out


def test_load_asks_for_trust_and_runs_nothing(cli: Cli, mine: Path) -> None:
    with PackageExporter("evil.pt2pkg") as exporter:
        exporter.save_source_string("evil", "open('ran', 'w').close()\nclass A: pass\n")
        exporter.save_source_string("model", "import evil\n", is_package=True)
        exporter.save_pickle("model", "model.pkl", {"a": 1})
    ran = cli("package", "--load", "evil.pt2pkg")
    assert ran.code == 2 and ran.out == "" and not (mine / "ran").exists()
    first, second = ran.err.splitlines()
    assert "evil.pt2pkg: loading a package runs code: 1 pickled object (model/model.pkl)" in first
    assert "2 modules of its own (evil, model)" in first and "--trust" in second
    for argument in ((), ("--arg", "trust=false"), ("--arg", "trust=1")):
        ran = cli("shapes", "package:evil.pt2pkg", "-i", "1x3", *argument)
        assert ran.code == 2 and "--arg trust=true" in ran.err and not (mine / "ran").exists()
    ran = cli("package", "--load", "evil.pt2pkg", "--trust", "-i", "1x3")
    assert "model/model.pkl holds a dict, not an nn.Module" in ran.err and (mine / "ran").exists()


def test_packages_of_others(cli: Cli, mine: Path) -> None:
    with PackageExporter("two.pt2pkg") as exporter:
        exporter.extern("**")
        exporter.save_pickle("a.b", "one.pkl", torch.nn.Linear(3, 2))
        exporter.save_pickle("c", "two.pkl", torch.nn.Linear(5, 7))
    ran = cli("package", "--load", "two.pt2pkg", "--trust")
    assert ran.code == 2 and "Give --resource, one of a/b/one.pkl, c/two.pkl" in ran.err
    argv = ("package", "--load", "two.pt2pkg", "--trust", "--resource")
    assert "unknown --resource 'c/tow.pkl'; did you mean c/two.pkl" in cli(*argv, "c/tow.pkl").err
    assert "input shape needed, for example --input 1x5" in cli(*argv, "c/two.pkl").err
    ran = cli(*argv, "a/b/one.pkl", "-i", "4x3", "-f", "json")
    assert report(ran.out)["rows"][0]["output_shape"] == [4, 2]
    ran = cli(*argv, "c/two.pkl", "-i", "4x3")
    assert ran.code == 2 and "failed on input 4x3" in ran.err
    with PackageExporter("none.pt2pkg") as exporter:
        exporter.save_text("a", "b.txt", "hello")
    assert "holds no pickled object" in cli("package", "--load", "none.pt2pkg", "--trust").err


def test_a_model_that_does_not_survive_pickling(cli: Cli, tmp_path: Path) -> None:
    file = str(tmp_path / "q.pt2pkg")
    assert cli("package", "quantized_resnet18", "--arg", "quantize=true", "--extern", "**", "-o", file).code == 0
    ran = cli("package", "--load", file, "--trust")
    assert ran.code == 2 and ran.err.startswith(f"hookcli: error: {file}: model/model.pkl has a part that can't")


def test_a_package_that_needs_what_is_not_here(cli: Cli, mine: Path) -> None:
    assert cli("package", "pk_mine.py:Net", "--extern", "**", "-i", "1x3", "-o", "m.pt2pkg").code == 0
    (mine / "pk_mine.py").unlink()
    sys.path.remove(str(mine))
    ran = cli("package", "--load", "m.pt2pkg", "--trust")
    assert ran.code == 2 and "building m.pt2pkg failed: ModuleNotFoundError: No module named 'pk_mine'" in ran.err


MISTAKES: dict[tuple[str, ...], str] = {
    ("resnet18", "--extern", "torchvison.**", "--extern", "**"): (
        "--extern 'torchvison.**' matches no module; resnet18 needs torchvision.models.resnet, builtins"
    ),
    ("resnet18", "--intern", "torch.**", "--extern", "**"): "--intern 'torch.**' has no effect",
    ("resnet18", "--extern", "**", "--deny", "torchvision.**"): "is decided before: --extern '**'",
    ("resnet18", "--extern", "a**"): "--extern 'a**': ** stands for whole names",
    ("resnet18", "-o", "r.json"): "--output r.json: this is the package's file, which needs the suffix .pt2pkg",
    ("resnet18", "-o", "no/such/r.pt2pkg"): "--output no/such/r.pt2pkg: can't write to no/such/",
    ("resnet18", "-o", "/proc/r.pt2pkg"): "can't write to /proc/",
    ("resnet18", "-o", "folder.pt"): "--output folder.pt: is a folder",
    ("resnet18", "--trust"): "--trust: only with --load FILE",
    ("resnet18", "--match", "fc"): "--match: only with --load FILE",
    ("resnet18", "--device", "meta"): "--device meta: no values to export",
    ("resnet18", "--columns", "fqn"): "--columns: unknown column 'fqn'",
    ("resnet5",): "unknown model 'resnet5'",
    ("pk_mine.py:lam",): "pk_mine.py:lam can't be pickled: f of act (Act): ",
    ("pk_mine.py:Main",): "pk_mine.py:Main can't be pickled: the class of the model (Main): ",
    ("--load", "no.pt2pkg"): "no file 'no.pt2pkg'",
    ("--load", "."): "'.' is a folder, not a package",
    ("--load", "pk_mine.py"): "pk_mine.py is not a torch.package, or is damaged",
    ("--load", "state.pt"): "state.pt is not a torch.package: torch.save or torch.jit.save wrote it",
    ("--load", "other.zip"): "other.zip is not a torch.package: a zip file without .data/extern_modules",
    ("--load", "half.pt2pkg", "--trust"): "half.pt2pkg is not a torch.package, or is damaged",
    ("--load", "m.pt2pkg", "resnet18"): "--load m.pt2pkg: loads a package, and takes no MODEL",
    ("--load", "m.pt2pkg", "--mock", "a"): "--load m.pt2pkg: loads a package, and takes no --mock",
    ("--load", "m.pt2pkg", "--arg", "a=1"): "unknown argument of a package 'a'",
    ("--load", "m.pt2pkg", "--trust", "-i", "x"): "--input 'x'",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as in any program; pytest alone shows them
@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_one_clear_line(cli: Cli, mine: Path, argv: tuple[str, ...]) -> None:
    torch.save({}, "state.pt")
    (mine / "folder.pt").mkdir()
    with zipfile.ZipFile("other.zip", "w") as archive:
        archive.writestr("a/b", "c")
    with PackageExporter("m.pt2pkg") as exporter:
        exporter.extern("**")
        exporter.save_pickle("model", "model.pkl", torch.nn.Linear(3, 2))
    (mine / "half.pt2pkg").write_bytes((mine / "m.pt2pkg").read_bytes()[:900])
    ran = cli("package", *argv)
    assert (ran.code, ran.out) == (2, ""), ran.out
    lines = ran.err.splitlines()
    assert lines[0].startswith("hookcli: error: ") and MISTAKES[argv] in lines[0], ran.err
    assert len(lines) <= 2 and "Traceback" not in ran.err
    assert not list(mine.glob(".*pt2pkg*"))


def test_a_failed_export_leaves_the_file_as_it_was(cli: Cli, mine: Path) -> None:
    (mine / "m.pt2pkg").write_text("before")
    assert cli("package", "pk_mine.py:Net", "-o", "m.pt2pkg").code == 2
    assert cli("package", "pk_mine.py:Net", "--extern", "**", "--mock", "zz", "-o", "m.pt2pkg").code == 2
    assert (mine / "m.pt2pkg").read_text() == "before" and not list(mine.glob(".m.pt2pkg*"))


def test_a_full_disk(mine: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "from hookcli.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "package", "resnet18", "--extern", "**", "-o", "m.pt2pkg"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and ran.stderr == "hookcli: error: can't write to ./: File too large\n"
    assert not list(mine.glob("*m.pt2pkg*")) and not list(mine.glob(".m.pt2pkg*"))


def test_the_table_at_80_columns_and_markdown(cli: Cli) -> None:
    ran = cli("package", "resnet18", "--extern", "torchvision.**", "--sort", "-size")
    assert "<model.model.pkl>" in ran.out.splitlines()[2] and "11 extern" in ran.out
    ran = cli("package", "resnet18", "--extern", "torchvision.**", "-f", "csv", "--columns", "module,action,size")
    assert ran.out.splitlines()[0] == "module,action,size" and len(ran.out.splitlines()) == 13
    assert (
        "| torchvision.models.resnet | extern |" in cli("package", "resnet18", "--extern", "**", "-f", "markdown").out
    )


def test_main_takes_the_default_model() -> None:
    assert main(["package", "--extern", "**", "--quiet", "--format", "csv"]) == 0
