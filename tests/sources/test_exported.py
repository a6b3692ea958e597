"""Exported programs: modules with their names and classes, example inputs, and files that are none."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookcli.errors import UsageError
from hookcli.sources.finding import find_recipe

Cli = Callable[..., Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.bn(self.conv(x))
        return {"out": x * scale + torch.arange(x.shape[-1], device=x.device)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return self.fc(self.block(x, scale)["out"].mean((2, 3)))  # type: ignore[no-any-return]


X, SCALE = torch.randn(2, 3, 8, 8), torch.tensor(2.0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    model = Net().eval()
    file = tmp_path_factory.mktemp("exported") / "net.pt2"
    torch.export.save(torch.export.export(model, (X,), {"scale": SCALE}), file)
    return file, model


def rows(cli: Cli, *words: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    ran = cli(*words, "-f", "json")
    assert ran.code == 0, ran.err
    (report,) = json.loads(ran.out)["reports"]
    return report, {row["fqn"]: row for row in report["rows"]}


@pytest.mark.sweep
def test_modules_have_the_names_and_classes_of_the_original(cli: Cli, exported: tuple[Path, nn.Module]) -> None:
    file, model = exported
    report, found = rows(cli, "shapes", str(file))
    assert {fqn: row["type"] for fqn, row in found.items()} == {
        fqn: type(module).__name__ for fqn, module in model.named_modules()
    }
    assert report["totals"]["params"] == sum(p.numel() for p in model.parameters()) and not report["skipped"]
    assert report["meta"]["device"] == "meta" and report["meta"]["exported_by"] == f"torch {torch.__version__}"
    assert report["model"] == "net.pt2" and found["block.bn"]["output_shape"] == [2, 4, 6, 6]


@pytest.mark.sweep
def test_values_are_those_of_the_original_on_its_example(cli: Cli, exported: tuple[Path, nn.Module]) -> None:
    file, model = exported
    _, found = rows(cli, "activations", f"pt2:{file}")
    assert found["fc"]["mean"] == pytest.approx(model(X, scale=SCALE).mean().item(), rel=1e-6)
    assert found[""]["type"] == "Net"


def test_a_comparison_takes_programs(cli: Cli, exported: tuple[Path, nn.Module]) -> None:
    file, _ = exported
    ran = cli("diff", str(file), str(file), "-q")
    assert ran.code == 0 and ran.out.startswith("Identical, bit for bit\n"), ran.err
    ran = cli("diff", str(file), f"{__file__}:Net", "--same-weights")  # a program has no settings to compare
    assert "6 compared" in ran.out and "nothing →" not in ran.out, ran.err


def test_what_is_wrong_is_said(cli: Cli, exported: tuple[Path, nn.Module], tmp_path: Path) -> None:
    file, _ = exported
    (tmp_path / "text.pt2").write_text("nothing")
    torch.save({}, tmp_path / "saved.pt2")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(tmp_path / "later.pt2", "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name.endswith("models/model.json"):
                program = json.loads(text)
                program |= {"schema_version": {"major": 99, "minor": 0}, "torch_version": "9.9"}
                text = json.dumps(program).encode()
            new.writestr(name, text)
    with zipfile.ZipFile(tmp_path / "deep.pt2", "w") as new:
        new.writestr("program/models/model.json", "[" * 100_000)
    for name, said in {
        "deep.pt2": "not an exported program, or damaged (RecursionError",
        "text.pt2": "not an exported program, or damaged (BadZipFile",
        "saved.pt2": "not an exported program: torch.export.save did not write it",
        "no.pt2": "no file",
        "later.pt2": f"torch {torch.__version__} can't load what torch 9.9 exported; export it again with this version",
    }.items():
        ran = cli("shapes", str(tmp_path / name))
        assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1, ran.err
    with pytest.raises(UsageError, match="is an exported program, which takes only trust=true"):
        find_recipe(str(file), {"width": 3})
