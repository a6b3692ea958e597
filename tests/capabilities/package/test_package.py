"""hookcli package: every figure read again with `zipfile`, every printed command run as printed."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from capabilities.package.packages import MINE, PARTS, Cli, printed, report
from support import swept
from torch.package import PackageImporter


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


def named(file: Path) -> set[str]:
    """The modules that the pickle of a package names."""
    [pickled] = [value for name, value in records(file).items() if name.endswith(".pkl")]
    return {str(argument).split()[0] for opcode, argument, _ in pickletools.genops(pickled) if opcode.name == "GLOBAL"}


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


@pytest.mark.sweep
@pytest.mark.parametrize("suffix", [".pt2pkg", swept(".pt"), swept(".package")])
def test_resnet18_with_its_values(cli: Cli, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"r{suffix}"
    ran = cli("package", "resnet18", "--seed", "3", "--extern", "torchvision.**", "-o", str(file), "-f", "json")
    found = report(ran.out)
    assert ran.code == 0 and set(went(found, "extern")) == named(file)
    assert_true_to(found, file)
    torch.manual_seed(3)
    expected = torchvision.models.resnet18(weights=None).state_dict()
    loaded = PackageImporter(file).load_pickle("model", "model.pkl")
    assert not loaded.training
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, expected[name])
    # 122 tensors in the state dict, none shared
    assert found["totals"]["tensor_bytes"] == sum(v.numel() * v.element_size() for v in expected.values())


@pytest.mark.sweep
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


@pytest.mark.sweep
@pytest.mark.parametrize("model", [swept("resnet50"), "resnet18"])
def test_resnet_passes_as_suggested(cli: Cli, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("package", model, "-f", "json")
    assert ran.code == 2 and went(report(ran.out), "blocked") == ["torchvision.models.resnet"]
    assert f"1 module blocks the export of {model}: torchvision.models.resnet. This works:" in ran.err
    again = cli(*printed(ran.err), "-o", "m.pt2pkg")
    assert again.code == 0, again.err
    assert set(went(report(again.out), "extern")) == named(tmp_path / "m.pt2pkg")


ATTEMPTS = [
    (),
    ("--intern", "pk_mine"),
    ("--intern", "**"),
    ("--mock", "pk_*", "--extern", "numpy"),
    ("--deny=numpy.**", "--intern", "pk_*", "--extern", "sys", "--extern", "io"),
    ("--extern", "no.such.**"),
]


@pytest.mark.parametrize(
    ("file", "attempt"),
    [
        swept(file, attempt) if "**" in attempt else (file, attempt)
        for file in ("pk_mine.py", "model.py")
        for attempt in ATTEMPTS
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given),
)
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
