"""Whose dtype a run has: the model's own, that of the example it brings, or --dtype."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
import torch
from support import each_once

import hookcli

Cli = Callable[..., Any]
NETS = """
import torch
from torch import nn

def half(): return nn.Linear(4, 3).half(), torch.randn(2, 4).half()
def brain(): return nn.Linear(4, 3).bfloat16(), (torch.randn(2, 4).bfloat16(),)
def double(): return nn.Linear(4, 3).double(), {"input": torch.randn(2, 4).double()}
def complicated(): return nn.Linear(4, 3).to(torch.complex64), torch.randn(2, 4, dtype=torch.complex64)

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4).bfloat16(), nn.Linear(4, 2)
    def forward(self, x):
        return self.b(self.a(x).float())

class Named(nn.Linear):
    example_input_array = torch.ones(2, 4).double()
    def __init__(self):
        super().__init__(4, 2, dtype=torch.float64)

class Twice(nn.MultiheadAttention):
    def __init__(self):
        super().__init__(4, 2, batch_first=True)
        self.same = None
    def forward(self, q, k, v):
        if not (q is k is v): raise ValueError("three tensors")
        return super().forward(q, k, v)[0]

def attention():
    x = torch.randn(2, 3, 4)
    return Twice(), (x, x, x)
"""
BRING = {"half": "float16", "brain": "bfloat16", "double": "float64", "complicated": "complex64", "Named": "float64"}


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


def run(cli: Cli, command: str, name: str, *options: str) -> dict[str, Any]:
    ran = cli(command, f"nets.py:{name}", *options, "-q", "-f", "json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)["reports"][0]
    return found


@pytest.mark.parametrize(
    ("name", "command"), each_once(BRING, ["shapes", "inputs", "activations", "grads", "trace", "graph", "check"])
)
def test_an_example_is_used_as_it_is(name: str, command: str, cli: Cli, nets: None) -> None:
    report = run(cli, command, name)
    assert report["meta"]["dtype"] == BRING[name]
    if command in ("inputs", "activations"):
        assert {row["dtype"] for row in report["rows"]} == {BRING[name]}
    if command == "check":
        assert not report["findings"]


@pytest.mark.parametrize(("name", "dtype"), [*BRING.items(), ("Mixed", "bfloat16")])
def test_generated_inputs_follow_the_model(name: str, dtype: str, cli: Cli, nets: None) -> None:
    report = run(cli, "inputs", name, "-i", "2x4")
    assert report["rows"][0]["dtype"] == dtype == report["meta"]["dtype"]
    report = run(cli, "inputs", name, "-i", f"2x4:{dtype}")
    assert report["rows"][0]["dtype"] == dtype


@pytest.mark.parametrize(("name", "dtype"), each_once(["half", "brain", "double", "Named"], ["float32", "float64"]))
def test_a_dtype_that_is_given_is_for_both(name: str, dtype: str, cli: Cli, nets: None) -> None:
    for given in ((), ("-i", "2x4")):
        report = run(cli, "activations", name, "--dtype", dtype, *given)
        assert report["meta"]["dtype"] == report["rows"][0]["dtype"] == dtype


@pytest.mark.parametrize(
    ("b", "second", "given"),
    each_once(
        starmap(pytest.param, [("half", "float16"), ("half --dtype float32", "float32"), ("double", "float64")]),
        [(), ("-i", "2x4")],
    ),
)
def test_each_side_has_its_own(b: str, second: str, given: tuple[str, ...], cli: Cli, nets: None) -> None:
    ran = cli("diff", "nets.py:half", f"nets.py:{b}", *given, "--rtol", "9", "-q", "-f", "json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)["reports"][0]
    assert [{**report["meta"], **report["meta"].get(side, {})}["dtype"] for side in "ab"] == ["float16", second]
    assert report["rows"][0]["dtype"] == ("float16" if second == "float16" else f"float16 → {second}")


@pytest.mark.parametrize(
    ("options", "command"), each_once([(), ("--dtype", "float64")], ["activations", "grads", "check"])
)
def test_one_tensor_in_three_places_stays_one(command: str, options: tuple[str, ...], cli: Cli, nets: None) -> None:
    run(cli, command, "attention", *options)


def test_a_package_says_the_dtype_of_what_is_in_it(cli: Cli, nets: None) -> None:
    ran = cli("package", "nets.py:brain", "-q", "-f", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["reports"][0]["meta"]["dtype"] == "bfloat16"


def test_the_meta_of_a_mixed_model_names_its_first_floating_dtype() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4).bfloat16())
    model.register_parameter("whole", torch.nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False))
    report = hookcli.capture(model, torch.ones(1, 4).bfloat16(), ["shapes"])[0]
    assert report.meta["dtype"] == "bfloat16"
