"""`hookcli sweep` as it is typed: the first line, the table, stderr, files and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
NET = """
import torch
from torch import nn

class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.fc(x)

class Net(nn.Module):
    '''By hand: x + 1 in `one`, then x + 10 in dimension 2 by `two`; the last keeps all.'''

    def __init__(self):
        super().__init__()
        self.one, self.two, self.last = Branch(), Branch(), nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.one.fc.weight.zero_(), self.two.fc.weight.zero_(), self.last.weight.copy_(torch.eye(4))
            self.one.fc.bias.fill_(1), self.two.fc.bias.copy_(torch.tensor([0.0, 0, 10, 0]))

    def forward(self, x):
        return self.last(self.two(self.one(x)))

def batches():
    return [(torch.ones(2, 4), torch.tensor([2, 2])), (torch.zeros(2, 4), torch.tensor([0, 1]))]

data = batches()
"""
ON = ("sweep", "deciding.py:Net", "--input", "2x4", "--fill", "ones")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deciding.py").write_text(NET)
    monkeypatch.chdir(tmp_path)


def report(cli: Cli, *argv: str) -> dict[str, Any]:
    ran = cli(*argv, "--format", "json")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out)["reports"][0])


def test_the_first_line_names_the_module_that_decides(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """x = 1: logit 2 is 1 + 1 + 10 = 12, without two.fc 2, without one.fc 11."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = cli(*ON, "--logit", "2")
    lines = ran.out.splitlines()
    assert lines[0] == "two.fc decides logit 2: 12.00 → 2.000 when zeroed (next: one.fc, 11.00)"
    assert "each module zeroed in turn" in f"{lines[1]} {lines[2].strip()}" and max(map(len, lines)) <= 80
    table = [line.split()[:2] for line in lines if line[:4].strip().isdigit()]
    assert table[:2] == [["1", "two.fc"], ["2", "one.fc"]] and {name for _, name in table[2:]} == {"one", "two", "last"}
    assert ran.err.startswith("hookcli: sweep of deciding.py:Net: 5 runs, about ") and ran.err.count("\n") == 1
    assert cli(*ON, "--logit", "2", "--quiet").err == ""


def test_json_has_every_row_and_options_narrow_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["fqn"]: row for row in report(cli, *ON, "--logit", "[1,2]")["rows"]}
    place = {"order": 1, "index": 3, "fqn": "two.fc", "type": "Linear", "bottleneck": False}
    assert rows["two.fc"] | {"output_change": 0} == place | {"output_change": 0, "logit": 2.0, "logit_change": -10.0}
    assert rows["two.fc"]["output_change"] == pytest.approx((100 / (144 + 3 * 4)) ** 0.5)
    assert [row["fqn"] for row in report(cli, *ON, "--match", "*.fc")["rows"]] == ["two.fc", "one.fc"]
    assert {row["fqn"] for row in report(cli, *ON, "--type", "Branch")["rows"]} == {"one", "two"}
    shallow = report(cli, *ON, "--depth", "1")
    assert {row["fqn"] for row in shallow["rows"]} == {"one", "two", "last"}
    assert {item["fqn"] for item in shallow["skipped"]} == {"one.fc", "two.fc"}
    by_name = cli(*ON, "--sort", "fqn", "--columns", "fqn,output change").out.splitlines()[-8:]
    assert [line.split()[0] for line in by_name if "." in line][:2] == ["last", "one"]


def test_a_saved_sweep_is_shown_and_compared(cli: Cli) -> None:
    assert cli(*ON, "-o", "a.json", "-q").code == cli(*ON, "--fill", "zeros", "-o", "b.json", "-q").code == 0
    shown = cli("show", "a.json")
    assert shown.code == 0 and shown.out.startswith("two.fc changes the output most: relative l2 0.8")
    other = cli("diff", "a.json", "b.json")
    assert other.code == 1 and "output_change" in other.out and cli("diff", "a.json", "a.json").code == 0


def test_real_input_has_a_target_for_the_loss(cli: Cli) -> None:
    """Only the first batch is run: class 2 of [2, 2, 12, 2], and without two.fc, of equal logits, log 4."""
    found = report(cli, "sweep", "deciding.py:Net", "--data", "deciding.py:data", "--loss", "cross-entropy")
    row = found["rows"][0]
    assert row["fqn"] == "two.fc" and row["loss"] == pytest.approx(1.3862944, rel=1e-6)
    assert "decides the loss: 1.362e-04 → 1.386 when zeroed" in found["totals"]["verdict"]


def test_another_run_is_patched_from_its_dump(cli: Cli) -> None:
    assert cli("activations", "deciding.py:Net", "--input", "2x4", "--fill", "zeros", "--dump", "zeros", "-q").code == 0
    found = report(cli, *ON, "--with", "from(zeros)", "--logit", "0")
    logits = {row["fqn"]: row["logit"] for row in found["rows"]}
    assert logits == {"one.fc": 2, "two.fc": 2, "one": 1, "two": 1, "last": 1}
    wrong = cli(*ON, "--with", "from(nowhere)")
    assert wrong.code == 2 and "nowhere" in wrong.err and wrong.err.count("error") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--with", "nought"), "unknown operation 'nought'"),
        (("--heads", "--experts"), "--heads and --experts: leave one of them out"),
        (("--heads", "--quantize", "int8"), "--heads and --quantize: leave one of them out"),
        (("--with", "mean", "--quantize", "int8"), "--quantize and --with mean: leave one of them out"),
        (("--quantize", "int3"), "unknown --quantize 'int3'"),
        (("--heads",), "no heads could be swept"),
        (("--experts",), "no experts could be swept"),
        (("--logit", "9"), "--logit '9': is outside the output, [2x4]; give 42, or '[0,42]'"),
        (("--device", "meta"), "--device meta: no values to look at"),
        (("--match", "nothing"), "no module or parameter matches 'nothing'"),
        (("--loss", "losses.total"), "unknown loss 'losses.total'"),
    ],
)
def test_a_mistake_gets_one_line(cli: Cli, options: tuple[str, ...], said: str) -> None:
    ran = cli(*ON, *options, "--quiet")
    assert ran.code == 2 and ran.out == "" and said in ran.err and ran.err.count("\n") == 1
