"""hookcli diff: two sides, each a model with options of its own or a saved report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookcli.system.importing import load_object

Cli = Callable[..., Any]
INPUT = ("--input", "2x3x4x4")
NET = "net.py:Net"


def parsed(out: str) -> dict[str, Any]:
    (report,) = json.loads(out)["reports"]
    return dict(report)


def test_a_model_equals_itself(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, NET, *INPUT, "--rtol", "0")
    assert ran.code == 0 and ran.err == ""
    assert "4 compared · 0 beyond · all within tolerance" in ran.out


def test_options_of_a_side_and_of_both(cli: Cli, net: Path) -> None:
    ran = cli(
        "diff", NET, f"{NET} --dtype bfloat16 --arg width=8", *INPUT, "--seed", "3", "-f", "json", "--rtol", "1e-9"
    )
    report = parsed(ran.out)
    assert ran.code == 1 and ran.err.startswith(
        "hookcli: 4 of 4 beyond tolerance; first beyond tolerance: conv (Conv2d)"
    )
    assert report["meta"]["a"]["dtype"] == "float32" and report["meta"]["b"]["dtype"] == "bfloat16"
    assert report["meta"]["a"]["seed"] == report["meta"]["b"]["seed"] == 3
    outputs = [row for row in report["rows"] if row["kind"] == "output"]
    assert {row["fqn"] for row in outputs if row["beyond"]} == {"", "conv", "act", "fc"}
    assert "hookcli: 4 of 4 parameters and buffers differ, 4 beyond tolerance" in ran.err
    assert report["findings"][0]["severity"] == "error"


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
    assert ran.code == 1 and "first beyond tolerance: conv (Conv2d): relative l2" in ran.out
    assert "4 beyond" in ran.out  # it, all that follow, and the model


def test_same_weights(cli: Cli, net: Path) -> None:
    assert cli("diff", NET, f"{NET} --seed 5", *INPUT).code == 1
    assert cli("diff", NET, f"{NET} --seed 5", *INPUT, "--same-weights").code == 0
    ran = cli("diff", NET, f"{NET} --arg width=4", *INPUT, "--same-weights")
    assert ran.code == 1 and "--same-weights: 3 of 4 tensors of B have no counterpart" in ran.err


def test_edits_of_one_side(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, f"{NET} --edit act:output=scale(1.01)", *INPUT)
    assert ran.code == 1 and "first beyond tolerance: act (ReLU)" in ran.out
    both = cli("diff", NET, NET, *INPUT, "--edit", "act:output=scale(1.01)")
    assert both.code == 0


def test_backward(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, f"{NET} --edit fc:grad_output=scale(2)", *INPUT, "--backward", "-f", "json")
    kinds = {(row["kind"], row["fqn"]): row for row in parsed(ran.out)["rows"]}
    assert ran.code == 1 and kinds["output", "fc"]["max_abs"] == 0
    assert kinds["grad", "conv.weight"]["rel_l2"] == pytest.approx(1) and kinds["grad_output", "conv"]["beyond"]
    assert parsed(ran.out)["meta"]["mode"] == "train"


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


def test_compiled_on_one_side(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, f"{NET} --compile * --compile-backend aot_eager", *INPUT)
    assert ran.code == 0 and "1 compared" in ran.out and "part of a compiled module" in ran.out


# Saved reports.


def save(cli: Cli, file: str, *argv: str, command: str = "activations") -> None:
    assert cli(command, *argv, *INPUT, "-o", file, "-q").code == 0


def test_saved_reports(cli: Cli, net: Path) -> None:
    save(cli, "a.json", NET)
    save(cli, "b.json", NET, "--edit", "act:output=scale(1.01)")
    ran = cli("diff", "a.json", "b.json")
    assert ran.code == 1 and "3 beyond · first beyond tolerance: act (ReLU): " in ran.out
    assert cli("diff", "a.json", "b.json", "--rtol", "0.1").code == 0
    assert cli("diff", "a.json", "a.json", "--rtol", "0").code == 0
    assert cli("diff", "a.json", "b.json", "--match", "conv").code == 0
    assert cli("diff", "a.json", "b.json", "--type", "ReLU").code == 1
    assert "nothing to compare: no row matches --match 'zz'" in cli("diff", "a.json", "b.json", "--match", "zz").err


@pytest.mark.parametrize("command", ["shapes", "inputs", "activations", "grads"])
def test_a_saved_report_and_a_model(cli: Cli, net: Path, command: str) -> None:
    save(cli, "a.json", NET, command=command)
    assert cli("diff", "a.json", NET, *INPUT).code == 0
    ran = cli("diff", f"{NET} --arg width=4", "a.json", *INPUT)
    assert ran.code == 1 and "first beyond tolerance: " in ran.out and "hookcli: error" not in ran.err


def test_runs_that_differ_are_told(cli: Cli, net: Path) -> None:
    save(cli, "a.json", NET)
    ran = cli("diff", "a.json", f"{NET} --seed 7", *INPUT)
    assert ran.code == 1 and "hookcli: the runs differ: seed 0 → 7" in ran.err


def test_saved_reports_need_no_torch(net: Path, cli: Cli) -> None:
    save(cli, "a.json", NET)
    code = "import sys; from hookcli.cli import main; print(main(['diff', 'a.json', 'a.json']), 'torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert ran.stdout.splitlines()[-1] == "0 False", ran.stderr


@pytest.mark.parametrize("format_", ["table", "json", "csv", "markdown"])
def test_formats(cli: Cli, net: Path, format_: str) -> None:
    ran = cli("diff", NET, f"{NET} --edit act:output=scale(2)", *INPUT, "-f", format_)
    assert ran.code == 1 and "act" in ran.out, ran.err


# What goes wrong.

MISTAKES: dict[tuple[str, ...], str] = {
    (NET,): "Missing argument 'B'",
    (NET, "net.py:Nett", *INPUT): "B: net.py: unknown name 'Nett'; did you mean Net",
    (NET, "resnt18"): "B: unknown model 'resnt18'; did you mean resnet18",
    (NET, f"{NET} --dtpe bfloat16", *INPUT): "No such option: --dtpe",
    (NET, f"{NET} --input 1x3x4x4"): "(its own options are --arg, --weights,",
    (NET, f"{NET} --dtype 'bf", *INPUT): "No closing quotation",
    (NET, f"{NET} {NET}", *INPUT): "unexpected extra argument",
    (NET, NET): "net.py:Net: input shape needed, for example --input 1x3x224x224",
    (NET, NET, *INPUT, "--rtol", "-1"): "--rtol",
    (NET, NET, *INPUT, "--rtol", "much"): "Invalid value for '--rtol'",
    (NET, f"{NET} --device warp", *INPUT): "B: --device warp: not available",
    (NET, f"{NET} --device meta", *INPUT): "B --device meta: no values to compare",
    (NET, f"{NET} --compile nope", *INPUT): "--compile 'nope': no module has such a name",
    (NET, f"{NET} --compile * --compile-backend nope", *INPUT): "unknown --compile-backend 'nope'",
    (NET, f"{NET} --path nowhere", *INPUT): "B --path nowhere: no such folder",
    ("resnet18", "resnet18 --path ."): "B --path .: resnet18 is a torchvision model",
    (NET, "gone.json"): "gone.json: can't be read as a saved report (No such file or directory)",
    (NET, "weights.pt"): "B 'weights.pt': weights belong to a model: give 'MODEL --weights weights.pt'",
    ("a.json", "b.json"): "A holds a report of activations, B a report of shapes: compare what one command saw of both",
    ("a.json", "a.json", "--backward"): "--backward: both sides must be models",
    ("a.json", NET, "--same-weights", *INPUT): "--same-weights: both sides must be models",
    ("trace.json", "trace.json"): "reports of trace can't be compared",
    ("trace.json", NET, *INPUT): "a saved report of trace can't be compared with a model",
    (NET, NET, *INPUT, "--loss", "mean"): "--loss: without --backward nothing is differentiated",
    (NET, NET, *INPUT, "--match", "zz*"): "no module or parameter matches 'zz*'",
    (NET, NET, *INPUT, "--sort", "rel"): "--sort: unknown column 'rel'",
    (NET, NET, *INPUT, "-f", "dot"): "--format dot: only for `hookcli graph` (",
    ("a.json", "a.json", "--columns", "rel_l2"): "--columns: unknown column 'rel_l2'",
    (NET, f"{NET} --edit zz:output=zero", *INPUT): "zz",
    (NET, f"{NET} --weights no.pt", *INPUT): "B: --weights: no file 'no.pt'",
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_one_clear_line(cli: Cli, net: Path, argv: tuple[str, ...]) -> None:
    save(cli, "a.json", NET)
    save(cli, "b.json", NET, command="shapes")
    save(cli, "trace.json", NET, command="trace")
    (net / "weights.pt").write_bytes(b"")
    ran = cli("diff", *argv)
    assert (ran.code, ran.out) == (2, ""), ran.out
    lines = ran.err.splitlines()
    assert lines[-1].startswith("hookcli: error: ") and MISTAKES[argv] in lines[-1], ran.err
    assert len(lines) <= 2 and "Traceback" not in ran.err


CRASHES = """
from net import Net

class Crashes(Net):
    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def forward(self, x):
        x = self.conv(x)
        if self.fails:
            raise KeyError("lost")
        return x
"""


@pytest.mark.parametrize("crashing", [0, 1])
def test_a_crash_shows_what_was_compared(cli: Cli, net: Path, crashing: int) -> None:
    (net / "crashes.py").write_text(CRASHES)
    sides = [f"crashes.py:Crashes --arg fails={int(number == crashing)}" for number in (0, 1)]
    ran = cli("diff", *sides, *INPUT)
    assert ran.code == 2 and "conv" in ran.out and "incomplete: the run failed" in ran.out
    said = f"{'AB'[crashing]}: the model (Crashes) failed on input 2x3x4x4: KeyError: 'lost'"
    assert ran.err.splitlines() == [f"hookcli: error: {said}", "  at crashes.py:12 forward"]


def test_nothing_in_common(cli: Cli, net: Path) -> None:
    ran = cli("diff", NET, f"{NET} --compile * --compile-backend eager", *INPUT, "--match", "conv")
    assert ran.code == 2 and "nothing to compare" in ran.err


def test_fits_a_terminal() -> None:
    """The table of a wide report, at 80 columns."""
    from hookcli.diff.tensors import TENSORS as COLUMNS
    from hookcli.report import Report, Row
    from hookcli.report.grouping import View
    from hookcli.reporters.table import TableReporter

    values = dict.fromkeys((column.name for column in COLUMNS), 0.0012345678)
    words = {"fqn": "layer1.0.downsample.conv", "type": "Conv2d", "path": "", "kind": "output", "dtype": "float32"}
    row = Row({**values, **words, "beyond": True, "shape": [10, 3, 224, 224], "call": 0, "differs": "x"})
    text = TableReporter().render([Report("diff", "a → b", COLUMNS, [row])], View(width=80))
    assert max(map(len, text.splitlines())) <= 80 and "beyond" in text and "Rel l2" in text.replace("\n", " ")


def test_a_pair_that_crashes_has_no_table_of_what_is_removed(cli: Cli, net: Path) -> None:
    """Where nothing was compared, the error says it all; where something was, that is shown and no more."""
    code = (
        "from torch import nn\nfrom net import Net\n\nclass Wide(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Softplus(), nn.Tanh()\n"
        "        self.net = Net()\n"
        "    def forward(self, x):\n        return self.net(self.b(self.a(x)))\n"
        "\nclass Late(Net):\n    def forward(self, x):\n        super().forward(x)\n        raise ValueError('late')\n"
        "\nclass Early(nn.Sigmoid):\n    def forward(self, x):\n        raise ValueError('early')\n"
    )
    (net / "bad.py").write_text(code)
    ran = cli("diff", "bad.py:Wide", "bad.py:Early", *INPUT)
    assert ran.code == 2 and ran.out == "" and "ValueError: early" in ran.err
    ran = cli("diff", "bad.py:Wide", "bad.py:Late", *INPUT)
    assert ran.code == 2 and "removed" not in ran.out.partition(" compared")[0]
    ran = cli("diff", NET, "bad.py:Late", *INPUT)
    assert ran.code == 2 and "all within tolerance until the run failed" in ran.out and "incomplete" in ran.out
