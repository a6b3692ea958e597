"""`hookcli diff` judges both sides by a run in float64, and tells a layer's own error from what it inherited."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import swept
from torch import Tensor

from hookcli.diff.precision import Precision, Rows
from hookcli.errors import ModelError

Cli = Callable[..., Any]
INPUT = ("--input", "4x8")
FILE = """
import torch
from torch import nn

class Half(nn.Linear):
    def forward(self, x):
        w, b = self.weight.half(), self.bias.half()
        return (x.half() @ w.T + b).float()

class Softmax(nn.Module):
    dtype = torch.float32
    def forward(self, x):
        return x.to(self.dtype).softmax(-1, dtype=self.dtype).type_as(x)

class Scale(nn.Module):
    factor = 1.0
    def forward(self, x):
        return x * self.factor

class Net(nn.Module):
    def __init__(self, fault=""):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.mid = nn.Sequential(nn.Linear(8, 8), Scale(), nn.Tanh())
        self.attn = nn.ModuleDict({"score": nn.Linear(8, 8), "softmax": Softmax()})
        self.last = nn.Linear(8, 3)
        if fault == "half":
            self.mid[0].__class__ = Half
        if fault == "softmax":
            self.attn.softmax.dtype = torch.bfloat16
        if fault == "scale":
            self.mid[1].factor = 1.003

    def forward(self, x):
        x = self.mid(self.first(x)) + torch.ones(8).to(x)
        return self.last(self.attn.softmax(self.attn.score(x)))

class Double(Net):
    pass

class Returns(Net):
    def __init__(self, scale=1.0):
        super().__init__()
        self.last.weight.data *= scale

    def forward(self, x):
        return super().forward(x).float()
"""


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    (tmp_path / "net.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)


def compared(cli: Cli, *argv: str) -> tuple[dict[str, dict[str, Any]], str, list[str]]:
    """The rows of outputs and gradients, the verdict, and what was skipped."""
    ran = cli("diff", *argv, *INPUT, "-f", "json")
    assert ran.code in (0, 1), ran.err
    report = json.loads(ran.out)["reports"][0]
    rows = {row["fqn"]: row for row in report["rows"] if row["kind"] in ("output", "grad")}
    return rows, report["totals"]["verdict"], [item["reason"] for item in report["skipped"]]


def outputs(dtype: torch.dtype, autocast: bool = False) -> dict[str, Tensor]:
    """What modules return, computed by hand, of the model that `diff` builds."""
    torch.manual_seed(0)
    model = runpy.run_path("net.py")["Net"]()
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    w = {name: p.detach().to(dtype) for name, p in model.named_parameters()}

    def linear(name: str, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = {"first": linear("first", x)}
        found["mid"] = linear("mid.0", found["first"]).tanh()
        found["attn.score"] = linear("attn.score", found["mid"] + torch.ones(8, dtype=dtype))
        soft = found["attn.score"].softmax(-1, dtype=dtype).type_as(found["attn.score"])
        return {**found, "attn.softmax": soft, "": linear("last", soft)}


def apart(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / a.double().norm())


def test_errors_are_those_of_a_forward_by_hand(cli: Cli) -> None:
    """Also where the model asks for float32 itself, and makes tensors of the default dtype."""
    rows, verdict, skipped = compared(cli, "net.py:Net --amp")
    exact, a, b = outputs(torch.float64), outputs(torch.float32), outputs(torch.float32, autocast=True)
    for name, x in exact.items():
        assert rows[name]["a_error"] == pytest.approx(apart(x, a[name]), rel=1e-3, abs=1e-9), name
        assert rows[name]["b_error"] == pytest.approx(apart(x, b[name]), rel=1e-3), name
    ratio = apart(exact[""], b[""]) / apart(exact[""], a[""])
    said = re.search(r"; B is over (10*[\d,]+) times further from float64 than A", verdict)
    assert said and not skipped
    power = float(said[1].replace(",", ""))
    assert power / 1.5 < ratio < 15 * power
    assert torch.get_default_dtype() == torch.float32


def gradient(dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    model = runpy.run_path("net.py")["Net"]().to(dtype)
    model.attn["softmax"].dtype = dtype
    model(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)).sum().backward()
    return torch.as_tensor(model.first.weight.grad)


@pytest.mark.sweep
def test_gradients_are_judged_too(cli: Cli) -> None:
    row = compared(cli, "net.py:Net --amp", "--backward")[0]["first.weight"]
    exact, plain = gradient(torch.float64), gradient(torch.float32)
    assert row["a_error"] == pytest.approx(apart(exact, plain), rel=1e-6) and row["b_error"] > 100 * row["a_error"]


def test_the_nearer_side_is_named_whichever_it_is(cli: Cli) -> None:
    _, verdict, _ = compared(cli, "net.py:Net --dtype bfloat16", "net.py:Net")
    assert "; A is " in verdict and "times further from float64 than B" in verdict
    _, verdict, _ = compared(cli, "net.py:Net --dtype float64")
    assert re.search(
        r"; A is (some|over) \S+ times further from float64 than B", verdict
    )  # whose softmax remains in float32
    _, verdict, _ = compared(cli, "net.py:Net --attention math")
    assert verdict.startswith("Identical, bit for bit; A and B are equally far from float64 (")


@pytest.mark.parametrize(
    ("fault", "layer"), [swept("half", "mid.0"), ("softmax", "attn.softmax"), swept("scale", "mid.1")]
)
def test_a_planted_fault_is_named_as_an_own_error(cli: Cli, fault: str, layer: str) -> None:
    """Every layer after it is off, too; alone it is the only one."""
    rows, verdict, skipped = compared(cli, "net.py:Net", f"net.py:Net --arg fault={fault}", "--isolate")
    said = re.search(r"; own error: (\S+) (\S+) \(others (at most (\S+)|have none)\)", verdict)
    assert said and said[1] == layer and float(said[2]) > 100 * float(said[4] or 0)
    assert rows["last"]["rel_l2"] > 1e-6 > rows["last"]["own"] and not any("--isolate" in text for text in skipped)
    assert rows["last"]["inherited"] > 1e-5


@pytest.mark.sweep
def test_a_fault_that_inherited_error_hides(cli: Cli) -> None:
    """Under autocast all layers are off by 1e-3 and more; the first one's fault is not what the softmax returns."""
    argv = ("net.py:Net --arg fault=scale --edit first:output=noise(0.05)", "--isolate")
    _, verdict, _ = compared(cli, "net.py:Net", *argv)
    assert verdict.startswith("First difference: first")
    rows, verdict, _ = compared(cli, "net.py:Net", *argv, "--match", "mid*")
    assert "; own error: mid.1 0.003" in verdict and rows["mid.0"]["rel_l2"] > 0.01 and rows["mid.0"]["own"] < 1e-6


@pytest.mark.sweep
def test_isolation_leaves_the_ordinary_figures_alone(cli: Cli) -> None:
    plain, alone = (compared(cli, "net.py:Net --amp", *more)[0] for more in ((), ("--isolate",)))
    for name, row in plain.items():
        assert {key: alone[name][key] for key in row} == row
    a = outputs(torch.float32)
    assert alone["first"]["inherited"] == 0 and alone["first"]["own"] == alone["first"]["rel_l2"]
    by_hand = apart(a["attn.softmax"], a["attn.score"].bfloat16().softmax(-1, dtype=torch.float32).bfloat16())
    assert alone["attn.softmax"]["own"] == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.sweep
def test_what_can_not_be_judged_is_said(cli: Cli) -> None:
    for argv, reason in (
        (("net.py:Net", "net.py:Double --dtype bfloat16"), "the sides differ in their modules"),
        (("net.py:Net", "net.py:Net --seed 1 --dtype bfloat16"), "the sides differ in their weights"),
        (("net.py:Net", "net.py:Net --dtype bfloat16 --edit first:output=scale(2)"), "the sides differ in their edits"),
    ):
        rows, _, skipped = compared(cli, *argv)
        assert f"no run in float64 to judge both sides by: {reason}" in skipped and "a_error" not in rows["last"]
    for argv in (("net.py:Net", "net.py:Net --seed 1"), ("net.py:Net --amp", "--no-float64")):
        rows, verdict, skipped = compared(cli, *argv)
        assert "float64" not in verdict and not skipped and "a_error" not in rows["last"]


@pytest.mark.sweep
def test_a_run_that_fails_is_said_and_a_bug_of_ours_is_raised(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: BaseException) -> None:
        def judge(self: Precision, a: Rows, b: Rows) -> None:
            raise error

        monkeypatch.setattr(Precision, "judge", judge)

    for error, said in (
        (ModelError("it has no float64"), "it has no float64"),
        (MemoryError("none left"), "none left"),
    ):
        failing(error)
        _, _, skipped = compared(cli, "net.py:Net --amp")
        assert f"no run in float64 to judge both sides by: {said}" in skipped
    failing(KeyError("ours"))
    ran = cli("diff", "net.py:Net --amp", *INPUT)
    assert ran.code == 2 and "bug in hookcli" in ran.err and "KeyError: 'ours'" in ran.err


def test_refused(cli: Cli) -> None:
    for argv, said in (
        (("net.py:Net --amp", "--isolate", "--backward"), "--isolate: is for the forward pass alone"),
        (("net.py:Net --compile eager", "--isolate"), "--isolate: what runs inside a compiled program"),
        (("a.json", "a.json", "--isolate"), "--isolate: both sides must be models, not saved reports"),
    ):
        ran = cli("diff", *argv, *INPUT)
        assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) == 1


def test_autocast_deserves_the_tolerance_of_its_dtype(cli: Cli) -> None:
    """Also where a module returns float32 again; weights keep their own."""
    rows, verdict, _ = compared(cli, "net.py:Returns --amp")
    assert rows[""]["dtype"] == "float32" and 1e-3 < rows[""]["rel_l2"] < 0.08 and not rows[""].get("beyond")
    assert verdict.startswith("Within tolerance")
    ran = cli("diff", "net.py:Returns", "net.py:Returns --arg scale=1.01 --amp", *INPUT)
    assert ran.code == 1 and "last.weight" in ran.out
