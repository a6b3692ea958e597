"""A fault is said first, and on the row that hides it: a GPT with a dead block, at 80 columns and 24 lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands.diffed import Cli
from commands.shown import on_terminal
from support import swept
from torch import nn

import hookcli
from hookcli.reporters.html.static_table import static_table
from hookcli.table import Report
from hookcli.table.files import read_reports
from hookcli.table.grouping import View, group_rows, shown
from hookcli.table.marks import faults

GPT = """
import torch
from torch import nn

class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc, self.act, self.proj = nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.proj(self.act(self.fc(x)))

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y)[0]
        return x + self.mlp(self.ln_2(x))

class GPT(nn.Module):
    def __init__(self, layers=6, dead=3, nan=None, width=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(100, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, 100, bias=False)
        if dead is not None:
            nn.init.constant_(self.blocks[dead].mlp.fc.bias, -50.0)
        if nan is not None:
            nn.init.constant_(self.blocks[nan].ln_2.bias, float("nan"))

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))
"""
DEEP = """
from torch import nn

class Deep(nn.Module):
    def __init__(self, gain=1.0):
        super().__init__()
        self.gain, self.layers = gain, nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(16))
        self.head = nn.Linear(32, 4)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=gain / 32**0.5)

    def forward(self, x):
        for layer in self.layers:  # activations keep their size, gradients don't
            y = layer(x)
            x = y + (y / self.gain - y).detach()
        return self.head(x)
"""
INPUT = ("--input", "2x8:int64")
SCREEN = {"LINES": "24", "NO_COLOR": "1"}


@pytest.fixture
def gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("gpt.py").write_text(GPT)
    return "gpt.py:GPT"


@pytest.mark.sweep
def test_a_folded_row_carries_its_worst_descendant_and_the_first_line_says_it(gpt: str) -> None:
    lines = on_terminal(80, "activations", gpt, *INPUT, "--quiet", **SCREEN).splitlines()
    assert lines[0] == "blocks.3.mlp.act: all zero" and lines[1].startswith("gpt.py:GPT · ")
    (row,) = (number for number, line in enumerate(lines) if line.startswith("blocks.3 "))
    assert "▲ mlp.act all zero" in " ".join(lines[row : row + 2]) and str(lines).count("▲") == 1
    assert len(lines) <= 24 and max(map(len, lines)) <= 80


@pytest.mark.sweep
def test_a_block_with_a_fault_folds_with_no_other_however_many_there_are(gpt: str) -> None:
    said = on_terminal(80, "activations", gpt, *INPUT, "--arg", "layers=24", "--quiet", **SCREEN)
    names = re.findall(r"^(blocks\S+)(?: \(|  )", said, re.MULTILINE)
    assert names == ["blocks.0-2", "blocks.3", "blocks.4-23"] and "▲ mlp.act all zero" in said


@pytest.mark.sweep
def test_nothing_is_added_to_a_healthy_model(gpt: str) -> None:
    said = on_terminal(80, "activations", gpt, *INPUT, "--arg", "dead=none", "--depth", "1", "--quiet", **SCREEN)
    assert said.startswith("at depth 1: largest magnitude ") and "all finite, none all zero\ngpt.py:GPT · " in said
    assert "▲" not in said


def test_the_worst_fault_wins_and_the_first_of_several_is_named(gpt: str, cli: Callable[..., Any]) -> None:
    out = cli("activations", gpt, *INPUT, "--arg", "nan=4", "--depth", "1").out.splitlines()
    assert out[0] == "blocks.4.ln_2: 512 NaN, and in 11 modules after it"  # 3 of block 4, 6 of block 5, ln_f, head
    (dead, bad) = (next(line for line in out if line.startswith(f"blocks.{n} ")) for n in (3, 4))
    assert dead.endswith("▲ mlp.act all zero") and "▲ ln_2 512 NaN, and " in bad
    first = cli("grads", gpt, *INPUT, "--depth", "2").out.splitlines()[0]
    assert first == "blocks.3.mlp.proj.weight: gradient all zero, and in 4 parameters after it"


def test_json_pages_and_notebooks_say_the_same(gpt: str, cli: Callable[..., Any]) -> None:
    assert cli("activations", gpt, *INPUT, "--output", "saved.json").code == 0
    (report,) = read_reports("saved.json")
    assert report.totals["verdict"] == "blocks.3.mlp.act: all zero"
    assert json.loads(Path("saved.json").read_text())["reports"][0]["totals"] == dict(report.totals)
    markdown = cli("show", "saved.json", "-f", "markdown", "--depth", "1").out
    assert markdown.splitlines()[2] == "**blocks.3.mlp.act: all zero**" and markdown.count("blocks.3.mlp.act") == 1
    static = static_table(shown(report, View(depth=1)), View(depth=1))
    assert "blocks.3.mlp.act: all zero</p>" in static and "▲ mlp.act all zero</td>" in static
    measured = replace(report, totals={})  # as hookcli.capture returns it
    assert str(measured).startswith("blocks.3.mlp.act: all zero\n")
    assert "blocks.3.mlp.act: all zero</p>" in measured._repr_html_()


class Zeros(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 4, dtype=torch.int64)


def test_zeros_of_integers_and_of_a_dropout_are_no_fault() -> None:
    net = nn.Sequential(nn.Dropout(1.0), Zeros()).train()
    (report,) = hookcli.capture(net, torch.randn(4, 4), ["activations"])
    assert [row["zeros"] for row in report.rows] == [16, 16, 16]
    assert not any(faults(report)) and "verdict" not in shown(report, View()).totals


def test_a_gate_that_is_half_open_is_no_fault() -> None:
    gate = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    (report,) = hookcli.capture(gate, torch.randn(16, 4) * 1e-12, ["activations"])
    gate[0].bias.data.zero_()
    (half,) = hookcli.capture(gate, torch.randn(16, 4) * 1e-12, ["activations"])
    assert half.rows[-1]["min"] == half.rows[-1]["max"] == 0.5 and not any(faults(half)[1:])
    assert report.rows[-1]["min"] != 0.5


def test_a_constant_output_is_a_fault_unless_it_is_a_few_values() -> None:
    for batch, verdict in ((16, "layer 1: all 1"), (4, None)):
        net = nn.Sequential(nn.Linear(4, 1), nn.Softmax(dim=1))
        (report,) = hookcli.capture(net, torch.randn(batch, 4), ["activations"])
        assert shown(report, View()).totals.get("verdict") == verdict


def test_grouped_rows_of_a_saved_report_keep_their_marks(gpt: str, cli: Callable[..., Any]) -> None:
    cli("activations", gpt, *INPUT, "--output", "saved.json")
    (report,) = read_reports("saved.json")
    grouped: Report = group_rows(report, 1)
    assert {row.fqn: row["note"] for row in grouped.rows if row.get("note")} == {"blocks.3": "▲ mlp.act all zero"}
    again = cli("show", "saved.json", "--depth", "1").out
    assert again.startswith("blocks.3.mlp.act: all zero\n") and "▲ mlp.act all zero" in again


@pytest.mark.sweep
def test_an_activation_that_is_called_as_a_function_is_marked_too(gpt: str) -> None:
    Path("gpt.py").write_text(GPT.replace("self.act(self.fc(x))", "torch.relu(self.fc(x))"))
    lines = on_terminal(80, "activations", gpt, *INPUT, "--ops", "--quiet", **SCREEN).splitlines()
    assert lines[0] == "blocks.3.mlp:relu_1: all zero" and "▲ mlp:relu_1 all zero" in " ".join(lines)
    healthy = on_terminal(80, "activations", gpt, *INPUT, "--ops", "--arg", "dead=none", "--quiet", **SCREEN)
    assert "none all zero" in healthy and healthy.count("all zero") == 1


@pytest.mark.parametrize(("gain", "word", "rule"), [swept(0.2, "vanishes", "HK012"), (20.0, "explodes", "HK013")])
def test_gradients_that_vanish_or_explode_are_marked_where_they_begin(
    gain: float, word: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep.py").write_text(DEEP)
    lines = on_terminal(80, "grads", "deep.py:Deep", "-i", "8x32", "--arg", f"gain={gain}", **SCREEN).splitlines()
    found = re.match(rf"layers\.(\d+)\.weight: gradient {word} from here to the input \(\S+ of that near", lines[0])
    assert found and lines[-1] == f"Next: hookcli explain {rule}"
    (mark,) = (number for number, line in enumerate(lines) if line.startswith(f"  ▲ {word} from here to the input"))
    assert lines[mark - 1].startswith(f"layers.{found[1]}.weight ")
    folded = on_terminal(80, "grads", "deep.py:Deep", "-i", "8x32", "--arg", f"gain={gain}", "--depth", "1", **SCREEN)
    assert folded.count(word) == 2  # once in the first line, once at its layer
    exec(DEEP, code := {})
    torch.manual_seed(0)
    (net := code["Deep"](gain))(torch.randn(8, 32)).sum().backward()
    ratio = float(net.layers[int(found[1])].weight.grad.norm() / net.head.weight.grad.norm())
    assert 1e-7 < (ratio if gain < 1 else 1 / ratio) < 1e-2  # that of HK012 and HK013 is 1e-4
    healthy = on_terminal(80, "grads", "deep.py:Deep", "-i", "8x32", "--arg", "gain=1.0", **SCREEN)
    assert healthy.startswith("gradient norms of 18 parameters: ") and "▲" not in healthy and "Next" not in healthy


DETACHED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dead=False):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.frozen, self.tied, self.dead = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8), dead
        self.tied.weight = self.blocks[3].weight

    def forward(self, x):
        x = self.blocks[1](self.blocks[0](x)).detach()
        x = self.tied(self.frozen(self.blocks[3](self.blocks[2](x))))
        return x * 0 if self.dead else x
"""


def test_what_a_detach_cuts_off_is_said_first(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(DETACHED)
    text = cli("grads", "net.py:Net", "--input", "2x8").out
    assert text.splitlines()[0] == "4 of 9 parameters got no gradient (first: blocks.0.weight)", text
    assert text.rstrip().endswith("Next: hookcli explain HK008"), text
    dead = cli("grads", "net.py:Net", "--arg", "dead=True", "--input", "2x8").out.splitlines()[0]
    assert dead.startswith(
        "4 of 9 parameters got no gradient (first: blocks.0.weight); tied.bias: gradient all zero"
    ), dead
    of_outputs = cli("grads", "net.py:Net", "--input", "2x8", "--of", "outputs").out
    assert "parameters got no gradient" not in of_outputs and "Next: " not in of_outputs
    selected = cli("grads", "net.py:Net", "--input", "2x8", "--match", "blocks.2.*").out
    assert "parameters got no gradient" not in selected, selected


@pytest.mark.sweep
def test_the_first_line_stays_on_a_screen_where_most_rows_have_remarks(gpt: str) -> None:
    """Remarks on faults lose their last words, and count as notes; the command and the next prompt take lines, too."""
    sides = (gpt, f"{gpt} --seed 1", "--arg", "layers=8", *INPUT)
    whole = on_terminal(80, "diff", *sides, "--depth", "1", **SCREEN).splitlines()
    remarks = [line for line in whole if line.startswith("  ▲ ")]
    lines = on_terminal(80, "diff", *sides, **SCREEN).splitlines()
    marked = [line for line in lines if re.search(r"  (▲ beyond.*|beyond|beyond, in weight)$", line)]
    assert len(lines) + 2 <= int(SCREEN["LINES"]) < len(lines) + len(remarks)
    hidden = sum(int(found[1]) for line in lines if (found := re.fullmatch(r"… (\d+) more … *", line)))
    assert lines[0].startswith("First difference: ") and len(marked) + hidden == len(remarks) > 9 > hidden
    assert not any(line.startswith("  ▲ ") for line in lines)
    assert any(re.match(r"\d+ of \d+ rows.*, \d+ notes\b", line) for line in lines), lines[-3:]
