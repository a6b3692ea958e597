"""hookcli package --load, and what goes wrong."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import forks
import pytest
import torch
from capabilities.package.packages import Cli, printed, report
from support import require_clear_error, swept
from torch.package import PackageExporter

from hookcli.capabilities.package.source import noted_input
from hookcli.cli import main
from hookcli.sources.archive import Archive


def test_it_loads_where_the_users_module_is_not(cli: Cli, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = cli(*printed(cli("package", "pk_mine.py:named", "-o", "m.pt2pkg").err))
    assert again.code == 0
    away = tmp_path_factory.mktemp("away")
    (mine / "m.pt2pkg").rename(away / "m.pt2pkg")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "hookcli", "package", "--load", "m.pt2pkg", "--trust", "--format", "json"]
    ran = forks.run(command, cwd=away, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [row["output_shape"] for row in report(ran.stdout)["rows"]] == [[5, 4]] * 3  # its example, by keyword
    missing = [sys.executable, "-c", "import pk_mine"]
    assert forks.run(missing, cwd=away, env=environment, capture_output=True, check=False).returncode == 1


def test_the_sources_of_a_package_have_the_names_of_modules() -> None:
    sizes = {"a/b/c.py": 5, "a/__init__.py": 7, ".data/x.py": 1, "a/model.pkl": 3}
    archive = Archive(Path("a.pt"), sizes, (), 16)
    assert {name: archive.source_bytes(name) for name in archive.modules} == {"a.b.c": 5, "a": 7}


@pytest.mark.sweep
@pytest.mark.parametrize("model", ["resnet18", swept("ssdlite320_mobilenet_v3_large")])
def test_load_gives_what_shapes_gives(cli: Cli, tmp_path: Path, model: str) -> None:
    file = str(tmp_path / "m.pt2pkg")
    assert cli("package", model, "--extern", "**", "-o", file).code == 0
    loaded, fresh = (
        report(ran.out)
        for ran in (cli("package", "--load", file, "--trust", "-f", "json"), cli("shapes", model, "-f", "json"))
    )
    assert loaded["rows"] == fresh["rows"] and loaded["totals"] == fresh["totals"]
    assert len(loaded["rows"]) > 60 and loaded["model"] == "m.pt2pkg"


@pytest.mark.sweep
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
    assert "2 packaged modules (evil, model)" in first and "--trust" in second
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
    ("resnet18", "--trust"): "--trust: requires --load FILE",
    ("resnet18", "--match", "fc"): "--match: requires --load FILE",
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
    ("--load", "m.pt2pkg", "resnet18"): "--load m.pt2pkg: loads a package; leave out MODEL",
    ("--load", "m.pt2pkg", "--mock", "a"): "--load m.pt2pkg: loads a package; leave out --mock",
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
    require_clear_error(ran, MISTAKES[argv])
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
    ran = forks.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and ran.stderr == "hookcli: error: can't write to ./: File too large\n"
    assert not list(mine.glob("*m.pt2pkg*")) and not list(mine.glob(".m.pt2pkg*"))


@pytest.mark.sweep
def test_the_table_at_80_columns_and_markdown(cli: Cli) -> None:
    ran = cli("package", "resnet18", "--extern", "torchvision.**", "--sort", "-size")
    assert "<model.model.pkl>" in ran.out.splitlines()[3] and "11 extern" in ran.out
    ran = cli("package", "resnet18", "--extern", "torchvision.**", "-f", "csv", "--columns", "module,action,size")
    assert ran.out.splitlines()[0] == "module,action,size" and len(ran.out.splitlines()) == 13
    assert (
        "| torchvision.models.resnet | extern |" in cli("package", "resnet18", "--extern", "**", "-f", "markdown").out
    )


@pytest.mark.sweep
def test_main_takes_the_default_model() -> None:
    assert main(["package", "--extern", "**", "--quiet", "--format", "csv"]) == 0


def test_an_input_is_noted_only_if_it_is_of_tensors() -> None:
    x = torch.ones(2, 3)
    assert noted_input((x,)) == {"inputs": ["2x3"], "names": None, "listed": False}
    assert noted_input(([x, x],)) == {"inputs": ["2x3", "2x3"], "names": None, "listed": True}
    assert noted_input({"a": x.long()}) == {"inputs": ["2x3:int64"], "names": ["a"], "listed": False}
    assert noted_input(()) is None and noted_input((x, 3)) is None and noted_input(({"a": x},)) is None
