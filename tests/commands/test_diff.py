"""hookcli diff: two models, and saved reports."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from commands.diffs import INPUT, NET, Cli, save

from hookcli.system.importing import load_object


def parsed(out: str) -> dict[str, Any]:
    (report,) = json.loads(out)["reports"]
    return dict(report)


@pytest.mark.sweep
def test_a_model_equals_itself(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, NET, *INPUT, "--rtol", "0")
    assert ran.code == 0 and ran.err == ""
    assert ran.out.startswith("Identical, bit for bit\n") and "4 compared · 0 beyond" in ran.out


@pytest.mark.sweep
def test_options_of_a_side_and_of_both(cli: Cli, net: Path) -> None:
    ran = cli(
        "diff", NET, f"{NET} --dtype bfloat16 --arg width=8", *INPUT, "--seed", "3", "-f", "json", "--rtol", "1e-9"
    )
    report = parsed(ran.out)
    assert ran.code == 1 and ran.err.startswith("hookcli: First difference: conv (its input already differs), ")
    assert report["meta"]["a"]["dtype"] == "float32" and report["meta"]["b"]["dtype"] == "bfloat16"
    assert report["meta"]["a"]["seed"] == report["meta"]["b"]["seed"] == 3
    outputs = [row for row in report["rows"] if row["kind"] == "output"]
    assert {row["fqn"] for row in outputs if row["beyond"]} == {"", "conv", "act", "fc"}
    assert "hookcli: 4 of 4 parameters and buffers differ, 4 beyond tolerance" in ran.err
    assert report["findings"][0]["severity"] == "error"


@pytest.mark.sweep
def test_the_input_is_the_same_in_every_dtype(cli: Cli, net: Path) -> None:
    """float64 draws other random numbers than float32: made once, the input of both is the same but for rounding."""
    for dtype in ("float64", "bfloat16"):
        ran = cli("diff", NET, f"{NET} --dtype {dtype}", *INPUT, "-f", "json")
        assert ran.code == 0 and max(row["rel_l2"] for row in parsed(ran.out)["rows"]) < 0.02
        assert cli("diff", f"{NET} --dtype {dtype}", NET, *INPUT).code == 0


def test_a_weight_changed_by_hand_is_found(cli: Cli, net: Path) -> None:
    state = load_object(NET)().state_dict()
    torch.save(state, net / "a.pt")
    state["conv.weight"][2, 1, 1, 1] += 0.5
    torch.save(state, net / "b.pt")
    ran = cli("diff", f"{NET} --weights a.pt", f"{NET} --weights b.pt", *INPUT)
    assert (
        ran.code == 1
        and "First difference: conv (weight differs), relative error " in ran.out
        and "Next:" not in ran.out
    )
    assert "4 beyond" in ran.out  # it, all that follow, and the model


@pytest.mark.sweep
def test_same_weights(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, f"{NET} --seed 5", *INPUT)
    (command,) = re.findall(r"^Next: hookcli (.*)", ran.out, re.MULTILINE)
    assert ran.code == 1 and "--same-weights" in command and cli(*shlex.split(command)).code == 0
    assert cli("diff", NET, f"{NET} --seed 5", *INPUT, "--same-weights").code == 0
    ran = cli("diff", NET, f"{NET} --arg width=4", *INPUT, "--same-weights")
    assert ran.code == 1 and "--same-weights: 3 of 4 tensors of B have no counterpart" in ran.err


QUANTIZED = """
import net, torch

class Rounded(torch.Tensor):
    def dequantize(self):
        return self.as_subclass(torch.Tensor)

def make():
    model = net.Net()
    model.fc.weight = torch.nn.Parameter((model.fc.weight * 64).round().div(64).detach().as_subclass(Rounded))
    return model
"""


def test_quantized_weights_are_kept(cli: Cli, net: Path) -> None:
    """They were chosen: no other command is suggested, and --same-weights changes none."""
    (net / "rounded.py").write_text(QUANTIZED)
    ran = cli("diff", NET, "rounded.py:make", *INPUT)
    assert ran.code == 1 and "fc (weight differs)" in ran.out and "Next:" not in ran.out
    assert "fc (weight differs)" in (ran := cli("diff", NET, "rounded.py:make", *INPUT, "--same-weights")).out
    assert "--same-weights: 1 of 4 tensors of B have no counterpart of their shape in A, or are quantized" in ran.err
    assert cli("diff", "rounded.py:make", f"{NET} --seed 5", *INPUT, "--same-weights").code == 0


def test_edits_of_one_side(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, f"{NET} --edit act:output=scale(1.01)", *INPUT)
    assert ran.code == 1 and "First difference: act" in ran.out
    both = cli("diff", NET, NET, *INPUT, "--edit", "act:output=scale(1.01)")
    assert both.code == 0


def test_backward(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, f"{NET} --edit fc:grad_output=scale(2)", *INPUT, "--backward", "-f", "json")
    kinds = {(row["kind"], row["fqn"]): row for row in parsed(ran.out)["rows"]}
    assert ran.code == 1 and kinds["output", "fc"]["max_abs"] == 0
    assert kinds["grad", "conv.weight"]["rel_l2"] == pytest.approx(1) and kinds["grad_output", "conv"]["beyond"]
    assert parsed(ran.out)["meta"]["mode"] == "train"


@pytest.mark.sweep
def test_two_source_trees_with_helpers_of_the_same_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import torch\nfrom scale import FACTOR\n\nclass Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = torch.nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        import late\n        return self.fc(x) * FACTOR * late.FACTOR\n"
    )
    for tree, factor in (("old", 1), ("new", 2)):
        (tmp_path / tree / "pkg").mkdir(parents=True)
        (tmp_path / tree / "pkg" / "model.py").write_text(code)
        (tmp_path / tree / "model.py").write_text(code)
        for folder in (tmp_path / tree, tmp_path / tree / "pkg"):
            (folder / "scale.py").write_text(f"FACTOR = {factor}\n")
            (folder / "late.py").write_text(f"FACTOR = {factor}\n")
    monkeypatch.chdir(tmp_path)
    before, path = dict(sys.modules), list(sys.path)
    shapes = ("--input", "1x2", "-f", "json")
    for a, b in (
        ("model.py:Net --path old", "model.py:Net --path new"),
        ("model:Net --path old", "model:Net --path new"),
        ("old/pkg/model.py:Net", "new/pkg/model.py:Net"),
    ):
        rows = {row["fqn"]: row for row in parsed(cli("diff", a, b, *shapes).out)["rows"]}
        assert rows["fc"]["max_abs"] == 0 and rows[""]["rel_l2"] == pytest.approx(3), a
    assert not {"model", "scale", "late"} & (sys.modules.keys() - before.keys()) and sys.path == path


def test_saved_reports(cli: Cli, net: Path) -> None:
    save(cli, "a.json", NET)
    save(cli, "b.json", NET, "--edit", "act:output=scale(1.01)")
    ran = cli("diff", "a.json", "b.json")
    assert ran.code == 1 and ran.out.startswith("First difference: act, ") and "3 beyond" in ran.out
    assert cli("diff", "a.json", "b.json", "--rtol", "0.1").code == 0
    assert cli("diff", "a.json", "a.json", "--rtol", "0").code == 0
    assert cli("diff", "a.json", "b.json", "--match", "conv").code == 0
    assert cli("diff", "a.json", "b.json", "--type", "ReLU").code == 1
    for narrowing, said in (
        (("--match", "cnv"), "--match: no module or parameter matches 'cnv'; did you mean 'conv'?"),
        (("--type", "ReLu"), "unknown --type 'ReLu'; did you mean ReLU?"),
        (("--match", "conv", "--type", "ReLU"), "no row matches --match 'conv' and --type ReLU"),
    ):
        ran = cli("diff", "a.json", "b.json", *narrowing)
        assert (ran.code, ran.out) == (2, "") and said in ran.err


@pytest.mark.parametrize("command", ["shapes", "inputs", "activations", "grads"])
def test_a_saved_report_and_a_model(cli: Cli, net: Path, command: str) -> None:
    save(cli, "a.json", NET, command=command)
    assert cli("diff", "a.json", NET, *INPUT).code == 0
    ran = cli("diff", f"{NET} --arg width=4", "a.json", *INPUT)
    assert ran.code == 1 and "First difference: " in ran.out and "hookcli: error" not in ran.err


def test_runs_that_differ_are_told(cli: Cli, net: Path) -> None:
    save(cli, "a.json", NET)
    ran = cli("diff", "a.json", f"{NET} --seed 7", *INPUT)
    assert ran.code == 1 and "hookcli: the runs differ: seed 0 → 7" in ran.err


@pytest.mark.sweep
def test_saved_reports_need_no_torch(net: Path, cli: Cli) -> None:
    save(cli, "a.json", NET)
    code = "import sys; from hookcli.cli import main; print(main(['diff', 'a.json', 'a.json']), 'torch' in sys.modules)"
    ran = forks.run([sys.executable, "-c", code], fresh=True, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "0 False", ran.stderr


@pytest.mark.parametrize("format_", ["table", "json", "csv", "markdown"])
def test_formats(cli: Cli, net: Path, format_: str) -> None:
    ran = cli("diff", NET, f"{NET} --edit act:output=scale(2)", *INPUT, "-f", format_)
    assert ran.code == 1 and "act" in ran.out, ran.err
