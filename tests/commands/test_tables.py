"""models, plugins, help and completion: instant, and true."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
import torchvision
from PIL import Image

from hookcli import commands
from hookcli.commands import COMMANDS, MODULES
from hookcli.tensors import library

Cli = Callable[..., Any]


def test_models(cli: Cli) -> None:
    found = json.loads(cli("models", "-f", "json").out)["reports"][0]
    assert [row["name"] for row in found["rows"]] == torchvision.models.list_models()
    assert found["model"] == f"torchvision {torchvision.__version__}"
    assert next(r for r in found["rows"] if r["name"] == "resnet50") == {
        "name": "resnet50", "kind": "classification", "params": 25557032, "input": "1x3x224x224",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("resnet5", ["fcn_resnet50"]), ("vit_?_14", ["vit_h_14"]), ("optical_flow", ["raft_large", "raft_small"])],
)
def test_models_by_a_part_a_glob_or_a_kind(cli: Cli, pattern: str, names: list[str]) -> None:
    found = [row["name"] for row in json.loads(cli("models", pattern, "-f", "json").out)["reports"][0]["rows"]]
    assert set(names) <= set(found) and (found == names or pattern == "resnet5")


def test_the_table_of_models_holds_every_model(cli: Cli) -> None:
    shown = {line.split()[0] for line in cli("models").out.splitlines() if line}
    assert set(torchvision.models.list_models()) <= shown


def test_plugins(cli: Cli) -> None:
    ran = cli("plugins")
    for name in ("torchvision", "importpath", "shapes", "grads", "table", "csv"):
        assert name in ran.out
    assert ran.code == 0


def test_help_of_every_option_stands_under_a_heading(cli: Cli) -> None:
    text = cli("grads", "--help", "all").out
    for heading in ("Arguments:", "Gradients:", "Model:", "Input:", "Run:", "Display:", "Output:"):
        assert f"\n{heading}\n" in text
    options = (
        "input batch-size fill seed arg weights no-strict train eval device dtype threads depth match type columns"
    )
    options += " sort format output quiet debug of loss backward-vector passes"
    assert [option for option in options.split() if f"--{option}" not in text] == []


def test_every_file_of_a_command_is_listed() -> None:
    files = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    core = {name for name, module in MODULES.items() if module.startswith("hookcli.commands.")}
    assert {name for name in files if hasattr(import_module(f"hookcli.commands.{name}"), "EXAMPLES")} == core


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from hookcli.cli import main; main(['--help'])\n"
        "sys.exit(' '.join(name for name in sys.modules if name.split('.')[0] in ('rich', 'torch')"
        " or name.startswith('hookcli.commands.')"
        " and name.split('.')[-1] not in ('app', 'typer_classes', 'help_pages')))"
    )
    ran = forks.run([sys.executable, "-c", code], fresh=True, capture_output=True, text=True, check=False)
    assert ran.stderr == "\n"


IMPORTED = [import_module(MODULES[name]) for name in COMMANDS]
NEED_A_FILE = ("net.p", "before.json", "activations.json", "run.jsonl", "hookcli run ", "hookcli weights ", "base.safe")
NEED_A_FILE += ("dumped/", "hookcli explore ")  # which needs a terminal
EXAMPLES = [line for m in IMPORTED for line in m.EXAMPLES if not any(name in line for name in NEED_A_FILE)]


SMALL = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
from small_models import small
from torch.nn import Linear
from torchvision.models.resnet import BasicBlock, ResNet
class Thin(ResNet):
    def _make_layer(self, block, planes, *options, **others):
        return super()._make_layer(block, planes // 8, *options, **others)
def resnet18():
    net = Thin(BasicBlock, [1, 1, 1, 1])
    net.fc = Linear(64, 1000)
    return net
def vit_b_16(): return small("vit_b_32")
vit_l_16 = vit_b_16
def convnext_tiny(): return small("convnext_tiny")
resnet50 = resnet18
"""
PROBES = "inputs|activations|attention|experts|spectrum|formats|grads|graph|trace"
COMPUTE = re.compile(f"hookcli (report|{PROBES}|sweep|comm|check|diff|memory|shapes .*--time) ")
MODEL = re.compile(r"\b(resnet18|resnet50|vit_b_16|vit_l_16|convnext_tiny)\b")


def reduced(line: str) -> str:
    """The same on a small model, where it computes."""
    if not COMPUTE.match(line):
        return line
    if "--image" in line:  # whose transforms come with a library's model
        return MODEL.sub("shufflenet_v2_x0_5", line)
    small = MODEL.sub(r"small.py:\1", line)
    if "--input" in line:
        return small.replace("10x3x224x224", "2x3x64x64")
    return f"{small} --input 2x3x64x64" if small != line else line


AS_PRINTED = [line for line in EXAMPLES if reduced(line) != line]
# Tests of these have smaller models.
OTHERWISE = re.compile(
    "--(fits|checkpoint|nproc|ops --|amp)|memory .* chart|hookcli (comm|diff|report|package) |vit_b|raft|-forward"
)
LONG = [line for line in map(reduced, EXAMPLES) if OTHERWISE.search(line)]
SWEPT = [pytest.param(line, marks=pytest.mark.sweep) for line in (*AS_PRINTED, *LONG)]


@pytest.mark.parametrize("line", [*(line for line in map(reduced, EXAMPLES) if line not in LONG), *SWEPT])
def test_examples_work(cli: Cli, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(SMALL)
    if "photos" in line:
        (tmp_path / "photos").mkdir()
        for name in ("cat.png", "dog.jpg"):
            Image.effect_noise((80, 64), 50).save(tmp_path / "photos" / name)
    model = "{model = 'small.py:resnet18', input = '2x3x64x64'}"  # for `hookcli check` alone
    (tmp_path / "pyproject.toml").write_text(f"[tool.hookcli]\nmodels = [{model}]\n")
    ran = cli(*shlex.split(line)[1:])
    assert ran.code == 0, ran.err


def test_no_arguments_show_the_help(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 0 and "What is in the model, and how big is it?" in ran.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out == "hookcli 0.1.0\n"


def test_the_version_in_full_says_which_code_measures_here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cli("--version", "--verbose").out
    assert found == cli("--verbose", "--version").out and found.startswith("hookcli 0.1.0\nPython 3.")
    assert f"\ntorch {torch.__version__}, accelerator: " in found
    assert f"\nstatistics on the CPU: {library.described()}\n" in found
    monkeypatch.setattr(library, "loaded", None)
    assert "\nstatistics on the CPU: PyTorch's operators (" in cli("--version", "--verbose").out


def test_verbose_alone_says_what_it_goes_with(cli: Cli) -> None:
    for words in (("--verbose",), ("--verbose", "shapes", "alexnet")):
        ran = cli(*words)
        assert ran.code == 2
        assert ran.err == "hookcli: error: --verbose goes with --version: hookcli --version --verbose\n"


@pytest.mark.parametrize("words", [{}, {"COMP_WORDS": "hookcli sh"}, {"COMP_WORDS": "hookcli sh", "COMP_CWORD": "x"}])
def test_completion_without_words(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: dict[str, str]) -> None:
    for name, value in ({"_HOOKCLI_COMPLETE": "complete_bash"} | words).items():
        monkeypatch.setenv(name, value)
    ran = cli("shapes")
    assert ran.code == 2 and ran.err.startswith("hookcli: error: _HOOKCLI_COMPLETE is set without COMP_WORDS"), ran.err


def test_completion_knows_the_models() -> None:
    asked = {"COMP_WORDS": "hookcli shapes resnet1", "COMP_CWORD": "2", "_HOOKCLI_COMPLETE": "complete_bash"}
    code = "from hookcli.__main__ import entry; entry()"
    ran = forks.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["resnet101", "resnet152", "resnet18"]
