"""`hookcli check --save` and `--against`, the same from Python, and what is refused."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import untouched
from torch import nn

from hookcli.engine.checking import check
from hookcli.errors import UsageError

Cli = Callable[..., Any]
NET = ("net.py:Net", "--input", "2x3x4x4")


@pytest.fixture
def saved(cli: Cli, net: Path) -> Path:
    """A baseline of the user's net."""
    ran = cli("check", *NET, "--save", "base.json")
    assert ran.code == 0 and ran.err == "hookcli: saved the baseline of net.py:Net in base.json\n"
    return net


def edit(folder: Path, old: str, new: str) -> None:
    code = (folder / "net.py").read_text()
    assert old in code
    (folder / "net.py").write_text(code.replace(old, new))


def test_a_model_is_as_it_was(cli: Cli, saved: Path) -> None:
    ran = cli("check", *NET, "--against", "base.json", "--rtol", "1e-5")
    assert ran.code == 0 and ran.err == "" and " passed (" in ran.out


def test_what_changed_is_named(cli: Cli, saved: Path) -> None:
    edit(saved, "nn.Linear(width * 16, 10)", "nn.Linear(width * 16, 9)")
    ran = cli("check", *NET, "--against", "base.json", "-f", "json", "-q")
    found = json.loads(ran.out)["reports"][0]["findings"]
    assert ran.code == 1 and {finding["check"] for finding in found} == {"HK027"}
    assert [finding["fqn"] for finding in found] == ["fc"]
    assert found[0]["message"].startswith("out_features 10 → 9; changed as a result: 1 shape, ")


def test_an_initialisation_that_moved(cli: Cli, saved: Path) -> None:
    edit(saved, "        self.act = ", "        nn.init.zeros_(self.conv.bias)\n        self.act = ")
    ran = cli("check", *NET, "--against", "base.json")
    assert ran.code == 1 and "conv: its output changed: " in ran.out and "changed as a result: " in ran.out
    assert cli("check", *NET, "--against", "base.json", "--rtol", "10").code == 0
    assert cli("check", *NET, "--against", "base.json", "--ignore", "HK027").code == 0


def test_several_models_share_a_file(cli: Cli, saved: Path) -> None:
    assert cli("check", "net.py:pair", "--save", "base.json").code == 0
    assert json.loads((saved / "base.json").read_text())["models"].keys() == {"net.py:Net", "net.py:pair"}
    assert cli("check", *NET, "--against", "base.json").code == 0


def test_the_file_is_the_same_each_time(cli: Cli, saved: Path) -> None:
    before = (saved / "base.json").read_bytes()
    cli("check", *NET, "--save", "base.json")
    assert (saved / "base.json").read_bytes() == before


@pytest.mark.sweep
def test_in_the_configuration(cli: Cli, saved: Path) -> None:
    (saved / "pyproject.toml").write_text(
        "[tool.hookcli]\nmodels = [{model = 'net.py:Net', input = '2x3x4x4'}]\nagainst = 'base.json'\nrtol = 1e-4\n"
    )
    assert cli("check").code == 0
    ran = cli("check", "--seed", "3")
    assert (
        ran.code == 2
        and "was made by a different run: seed 0 → 3; repeat that run, or --save a new baseline" in ran.err
    )
    for rtol in ("-1", "1000000001"):
        (saved / "pyproject.toml").write_text(f"[tool.hookcli]\nrtol = {rtol}\n")
        advice = "give a number from 0 to 1,000,000,000\n"
        assert f"pyproject.toml [tool.hookcli] rtol = {rtol}: {advice}" in cli("check").err
        assert cli("check", "--rtol", rtol).code == 2


def test_another_version_is_noted(cli: Cli, saved: Path) -> None:
    file = saved / "base.json"
    file.write_text(re.sub(r'"torch": "[^"]*"', '"torch": "1.0"', file.read_text()))
    ran = cli("check", *NET, "--against", "base.json")
    assert (
        ran.code == 0
        and f"hookcli: the baseline comes from another environment: torch 1.0 → {torch.__version__}" in ran.err
    )


OWN = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3), nn.Tanh())
        with torch.no_grad():
            self[0].weight.fill_(0.5), self[0].bias.fill_(-1)

def pair():
    return Net(), (torch.ones(2, 4),)
"""

MISTAKES: dict[tuple[str, ...], str] = {
    ("net.py:Net", "--input", "4x3x4x4", "--against", "base.json"): "by a different run: input 2x3x4x4 → 4x3x4x4",
    (*NET, "--eval", "--against", "base.json"): "by a different run: mode train → eval",
    (*NET, "--dtype", "float64", "--against", "base.json"): "by a different run: dtype float32 → float64",
    ("net.py:pair", "--against", "base.json"): "base.json: no baseline of this model: unknown model 'net.py:pair'",
    (*NET, "--against", "gone.json"): "gone.json: can't be read as a baseline of hookcli (No such file or directory)",
    (*NET, "--against", "net.py"): "net.py: damaged, or not a baseline of hookcli: not JSON",
    (*NET, "--against", "newer.json"): "newer.json: schema 2 is of a newer hookcli; this one knows 1: upgrade it",
    (*NET, "--against", "base.json", "--meta"): "--meta and --against: a baseline holds values",
    (*NET, "--save", "no/base.json"): "--save no/base.json: can't write to no/",
    (*NET, "--save", "net.py"): "net.py: damaged, or not a baseline of hookcli",
    ("net.py:boom", "--save", "net.py"): "net.py: damaged, or not a baseline of hookcli",  # before anything is built
    (*NET, "--against", "base.json", "--rtol", "-1"): "--rtol",
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_one_clear_line(cli: Cli, saved: Path, argv: tuple[str, ...]) -> None:
    (saved / "newer.json").write_text('{"schema": 2, "kind": "baseline"}')
    before = (saved / "net.py").read_text()
    ran = cli("check", *argv)
    assert ran.code == 2 and MISTAKES[argv] in ran.err and "Traceback" not in ran.err
    assert (saved / "net.py").read_text() == before


def test_from_python(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout()).train(), torch.randn(8, 4)
    file = str(tmp_path / "base.json")
    torch.manual_seed(1)
    with untouched(model):
        assert check(model, x, save=file).findings == []
    torch.manual_seed(1)
    with untouched(model):
        assert check(model, x, against=file, select="HK027").findings == []
    with torch.no_grad():
        model[0].weight.mul_(1.5)
    torch.manual_seed(1)
    report = check(model, x, against=file, select="HK027", backward=False)
    assert [finding.fqn for finding in report.findings] == ["0"] and report.findings[0].threshold == 1
    with pytest.raises(UsageError, match="no baseline of this model"):
        check(model, x, against=file, name="another")


def test_python_holds_a_model_against_what_the_command_saved(cli: Cli, net: Path) -> None:
    """And the other way round: with a model that brings its own example, and with an input of random numbers."""
    (net / "own.py").write_text(OWN)
    own = runpy.run_path("own.py")
    for spec, argv, x in (("own.py:pair", (), torch.ones(2, 4)), ("own.py:Net", ("--input", "2x4:float32"), None)):
        assert cli("check", spec, *argv, "--save", "base.json").code == 0
        assert " (its example)" not in Path("base.json").read_text()
        torch.manual_seed(0)
        x = torch.randn(2, 4) if x is None else x
        assert check(own["Net"]().train(), x, against="base.json", name=spec, select="HK027").findings == []
        check(own["Net"]().train(), x, save="python.json", name=spec)
        ran = cli("check", spec, *argv, "--against", "python.json")
        assert ran.code == 0, ran.out
        assert "only one of the runs tells its fill and seed: were both given the same values?" in ran.err
        with pytest.raises(UsageError, match=r"by a different run: input 2x4 → 3x4"):
            check(own["Net"]().train(), torch.ones(3, 4), against="base.json", name=spec)


def test_a_model_that_crashes_has_no_baseline(tmp_path: Path) -> None:
    report = check(nn.Linear(4, 4), torch.ones(2, 5), save=str(tmp_path / "base.json"))
    assert [finding.check for finding in report.findings] == ["HK001"] and not (tmp_path / "base.json").exists()
