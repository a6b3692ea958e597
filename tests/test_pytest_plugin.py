"""The fixture `hookcli`, as a project of someone's own uses it."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import forks
import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import torch
from torch import nn

def test_healthy(hookcli):
    report = hookcli.assert_healthy(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(16, 4))
    assert report.findings == []

def unused():
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].extra = nn.Linear(2, 2)
    return model

def test_findings(hookcli):
    assert [f.check for f in hookcli.check(unused(), torch.randn(16, 4)).findings] == ["HK006", "HK008"]

def test_ailing(hookcli):
    hookcli.assert_healthy(unused(), torch.randn(16, 4))

def test_settings(hookcli):
    hookcli.assert_healthy(unused(), torch.randn(16, 4), ignore=["HK008"], thresholds={"max-params": 100})

def test_warnings(hookcli):
    hookcli.assert_healthy(unused(), torch.randn(16, 4), ignore="HK008", fail_on="warning")

def test_mistake(hookcli):
    hookcli.assert_healthy(unused(), torch.randn(16, 4), fail_on="warn")
"""


# By its module, and not by the entry point of an installed hookcli too: its option can be added once.
PLUGINS = ("-p", "no:hookcli", "-p", "hookcli.pytest_plugin", "-p", "no:cacheprovider")


def run(folder: Path, *argv: str, fresh: bool = False) -> str:
    command = [sys.executable, "-m", "pytest", *PLUGINS, *argv]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return forks.run(
        command, fresh=fresh, cwd=folder, capture_output=True, text=True, env=environment, check=False
    ).stdout


def test_it_fails_tests_with_the_table_of_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(TESTS)
    said = run(tmp_path, "-q")
    failed = [line.split("::")[1].split(" ")[0] for line in said.splitlines() if line.startswith("FAILED")]
    assert failed == ["test_ailing", "test_warnings", "test_mistake"] and "3 passed" in said
    ailing = said.partition("_ test_ailing _")[2].partition("_ test_warnings _")[0]
    assert "Failed: Sequential is not healthy" in ailing and "HK008  error    0.extra: " in ailing
    assert "no gradient reached weight, bias" in ailing and "May follow from HK006 0.extra" in ailing
    assert ">       hookcli.assert_healthy(unused()" in ailing and "pytest_plugin.py" not in ailing
    assert "unknown fail_on 'warn'; did you mean warning?" in said


def test_it_is_found_and_loads_nothing_heavy(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"hookcli": "hookcli.pytest_plugin"}
    (tmp_path / "test_light.py").write_text(
        "import sys\ndef test_light(hookcli):\n    assert not {'torch', 'rich', 'typer'} & sys.modules.keys()\n"
    )
    assert "1 passed" in run(tmp_path, "-q", fresh=True)


SNAPSHOTS = """
import os
import torch
from torch import nn

def test_same(hookcli):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, int(os.environ["WIDTH"])), nn.Dropout())
    hookcli.assert_unchanged(model, torch.randn(8, 4))
"""


def test_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_model.py").write_text(SNAPSHOTS)
    monkeypatch.setenv("WIDTH", "3")
    assert "test_same.json: `pytest --hookcli-update` writes it" in run(tmp_path, "-q")
    assert "1 passed" in run(tmp_path, "-q", "--hookcli-update")
    assert (tmp_path / "hookcli_baselines" / "test_model" / "test_same.json").is_file()
    assert "1 passed" in run(tmp_path, "-q")
    monkeypatch.setenv("WIDTH", "5")
    said = run(tmp_path, "-q")
    assert "Failed: Sequential differs from its baseline " in said and "1 failed" in said
    assert "0: out_features 3 → 5" in said


SEVERAL = """
import pytest
import torch
from torch import nn

def same(hookcli, width, **settings):
    torch.manual_seed(0)
    hookcli.assert_unchanged(nn.Sequential(nn.Linear(4, width)), torch.randn(8, 4), **settings)

class TestA:
    def test_it(self, hookcli):
        same(hookcli, 2)

class TestB:
    def test_it(self, hookcli):
        same(hookcli, 3)

@pytest.mark.parametrize("what", ["a/b", "a-b", "x" * 300])
def test_what(hookcli, what):
    same(hookcli, 2 + len(what) + what.count("/"))

def test_several(hookcli):
    same(hookcli, 2)
    same(hookcli, 3)
    same(hookcli, 4, name="other")
"""


@pytest.mark.sweep
def test_each_test_and_each_call_has_a_baseline_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(SEVERAL)
    assert "6 passed" in run(tmp_path, "-q", "--hookcli-update")
    assert "6 passed" in run(tmp_path, "-q")
    folder = tmp_path / "hookcli_baselines" / "test_model"
    assert len(list(folder.iterdir())) == 6 and (folder / "TestA.test_it.json").is_file()
    assert len(list(folder.glob("test_what-a-b-*.json"))) == 2
    several = folder / "test_several.json"
    assert list(json.loads(several.read_text())["models"]) == ["Sequential", "Sequential #2", "other"]
    (tmp_path / "test_model.py").write_text(SEVERAL.replace('    same(hookcli, 4, name="other")\n', ""))
    assert "6 passed" in run(tmp_path, "-q", "--hookcli-update")
    assert list(json.loads(several.read_text())["models"]) == ["Sequential", "Sequential #2"]
