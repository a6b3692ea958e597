"""What is the caller's stays as it was: graphs, filters, hooks of others."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hooks.graphs_left import X
from support import Hand, equal
from torch import nn

import hookcli
from hookcli.capabilities.graph.probe import GraphProbe
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.errors import UsageError
from hookcli.hooks.kinds import FULL_BACKWARD, SAVED_TENSOR
from hookcli.hooks.native import build


def test_a_graph_of_the_callers_survives_a_step_and_a_round_trip() -> None:
    model = Hand()
    out = model(X).sum()
    hookcli.capture(model, X, [TraceProbe()], step=hookcli.Step(optimizer="adamw", state_dict=True))
    out.backward()
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(X).sum().backward()
    assert equal(grads, [p.grad for p in model.parameters()])


def test_warning_filters_of_others_stay() -> None:
    with warnings.catch_warnings():
        with hookcli.watch(Hand(), [TraceProbe(FULL_BACKWARD)]):
            warnings.filterwarnings("ignore", "theirs")
        assert [f for f in warnings.filters if f[1] is not None and f[1].pattern == "theirs"]
        assert not [f for f in warnings.filters if f[1] is not None and "backward hook" in f[1].pattern.lower()]


def test_only_what_was_changed_is_called_edited() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    rows = hookcli.capture(model, torch.tensor([1, 2]), ["inputs"], edits="*:input=zero")[0].rows
    assert {row.fqn: row.get("edited") for row in rows} == {"": None, "0": None, "1": "zero"}


def test_torchscript_is_refused_before_anything_else(cli: Any, net: Any) -> None:
    (net / "script.py").write_text("import torch\ndef make():\n    return torch.jit.script(torch.nn.Linear(3, 2))\n")
    for command in ("shapes", "activations", "graph", "trace"):
        ran = cli(command, "script.py:make", "-i", "2x3")
        assert ran.code == 2 and "is TorchScript, which takes no hooks" in ran.err and "Traceback" not in ran.err


def test_native_hooks_leave_those_of_python_in_place() -> None:
    if build.compiler() is None:
        pytest.skip("needs a C++ compiler")
    model, seen = Hand(), []
    model.out.weight.register_hook(lambda grad: seen.append("theirs"))
    report = hookcli.capture(model, X, [GraphProbe(True)], edits="first.weight:grad=zero")[0]
    zeroed = next(row for row in report.rows if row.fqn == "first.weight")
    assert seen == ["theirs"] and zeroed.stats is not None and zeroed.stats.zeros == 4
    model(X).sum().backward()
    assert seen == ["theirs"] * 2


def test_without_a_compiler_one_sentence(cli: Any, net: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(build, "_loaded", None)
    monkeypatch.setenv("CXX", "nonexistent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran = cli("graph", "net.py:Net", "-i", "2x3x4x4", "--native")
    assert ran.code == 2 and ran.out == "" and "Traceback" not in ran.err
    assert "CXX=nonexistent is not a program" in ran.err


def test_what_a_module_keeps_is_the_same_however_the_rows_are_narrowed() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1))
    whole = hookcli.capture(model, X, [TraceProbe(SAVED_TENSOR)])[0]
    part = hookcli.capture(model, X, [TraceProbe(SAVED_TENSOR)], select=lambda fqn, m: fqn == "2")[0]
    kept = [[(row["shape"], row["kept"]) for row in r.rows if row.fqn == "2"] for r in (whole, part)]
    assert kept[0] == kept[1] and len(kept[0]) > 1
    twice = hookcli.capture(model, X, [TraceProbe(SAVED_TENSOR)], step=hookcli.Step(passes=2))[0]
    assert twice.totals["kept_bytes"] == whole.totals["kept_bytes"]  # of one pass: they are not held together


@pytest.mark.parametrize("obstacle", ["legacy", "state_dict", "func"])
def test_a_trace_goes_on_without_what_the_model_forbids(obstacle: str, cli: Any, net: Any) -> None:
    (net / "obstacle.py").write_text(OBSTACLES)
    ran = cli("trace", f"obstacle.py:{obstacle}", "-i", "2x3", "-f", "json")
    assert ran.code == 0, ran.err
    kinds = {"legacy": "full_backward", "state_dict": "state_dict_pre", "func": "saved_tensor_pack"}
    assert f'"path": "{kinds[obstacle]}"' in ran.out and '"kind": "post_accumulate_grad"' in ran.out
    insisted = cli("trace", f"obstacle.py:{obstacle}", "-i", "2x3", "--kinds", kinds[obstacle])
    assert insisted.code == (0 if obstacle == "func" else 2)  # hooks on saved tensors are off inside torch.func alone


OBSTACLES = """
import torch
from torch import nn

def legacy():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].register_backward_hook(lambda *a: None)
    return model

class state_dict(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self._register_state_dict_hook(lambda module, state, *rest: state.update(renamed=state.pop("weight")))

class func(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)

    def forward(self, x):
        return super().forward(x) + torch.func.grad(lambda t: (t ** 2).sum())(x)
"""


def test_a_wrong_type_of_edit_is_told() -> None:
    with pytest.raises(UsageError, match="as text, not int"):
        hookcli.capture(Hand(), X, ["activations"], edits=[3])  # type: ignore[list-item]
