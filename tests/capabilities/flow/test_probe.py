"""The forward flow of tensors, against edges known by hand and against those that torch.fx finds in the code."""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from capabilities.flow.nets import CASES, Net
from small_models import each, whole
from support import swept, untouched
from torch import Tensor, fx, nn

from hookcli import capture
from hookcli.engine.capture import capture_recipe
from hookcli.hooks.flow_calls import is_leaf
from hookcli.sources.base import Request
from hookcli.sources.catalog import entries
from hookcli.sources.torchvision import TorchvisionSource
from hookcli.table import Report
from hookcli.tensors import tree


def flow(model: nn.Module, *inputs: Any) -> Report:
    return capture(model, inputs, ["flow"])[0]


def edges(report: Report) -> list[str]:
    """`add<a,input`: a call, and the calls that its inputs come from, each by its module or function."""
    names = {row["id"]: row.fqn if row["kind"] == "module" else row["type"] for row in report.rows}
    return [f"{names[row['id']]}<{','.join(names[i] for i in row['inputs'])}" for row in report.rows][1:]


@pytest.mark.parametrize("case", CASES)
def test_known_flows(case: str) -> None:
    body, expected = CASES[case]
    net, x = Net(body), torch.randn(3, 4)
    with untouched(net):
        found = edges(flow(net, x))
    assert found[: len(expected)] == expected


def test_rows_name_their_call_and_shapes() -> None:
    report = flow(Net(CASES["a skip connection in place"][0]), torch.randn(3, 4))
    add = report.rows[2]
    assert add.values == {
        "id": 2,
        "kind": "function",
        "fqn": "",
        "type": "add_",
        "number": 1,
        "call": 0,
        "inputs": [1, 0],
        "input_shape": [[3, 4], [3, 4]],
        "output_shape": [3, 4],
        "dtype": "float32",
        "function": "torch.Tensor.add_",
    }
    assert report.totals == {"module calls": 2, "function calls": 1}


def test_values_that_python_reads_are_told() -> None:
    skipped = flow(Net(lambda net, x: net.a(x) * x.sum().item()), torch.randn(3, 4)).skipped
    assert ("", "item reads values, which are not followed further") in [(s.fqn, s.reason) for s in skipped]


def test_tensors_of_unknown_origin_are_told() -> None:
    made_before = torch.ones(4)
    skipped = flow(Net(lambda net, x: net.a(x) * made_before), torch.randn(3, 4)).skipped
    assert any("unknown origin" in s.reason for s in skipped)


def test_a_scripted_part_is_one_call() -> None:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

        def forward(self, x: Tensor) -> Any:
            return self.part(x) + x

    report = flow(Scripted(), torch.randn(3, 4))
    assert [row["inputs"] for row in report.rows[1:]] == [[0], [1, 0], [2]]
    assert any(s.fqn == "part" for s in report.skipped)


def test_nothing_is_kept_alive_and_results_are_the_same() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def body(net: Any, x: Tensor) -> Tensor:
        y = net.relu(net.a(x))
        seen.append(weakref.ref(y))
        z: Tensor = net.b(y).sum(0)
        assert seen[0]() is y
        del y
        assert seen[0]() is None  # without grad nothing else holds it
        return z

    capture(Net(body), torch.randn(3, 4), ["flow"])
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = layer(x)
    seen_outputs: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, args, output: seen_outputs.append(output))
    capture(layer, x, ["flow"])
    handle.remove()
    gc.collect()
    assert torch.allclose(seen_outputs[0], expected, atol=1e-6)


def test_beside_a_probe_of_values_its_operations_are_not_seen() -> None:
    net = Net(CASES["a skip connection in place"][0])
    alone = flow(net, torch.randn(3, 4))
    beside = capture(net, torch.randn(3, 4), ["activations", "flow", "shapes"])[1]
    assert edges(beside) == edges(alone)


# Against the edges that torch.fx finds.


class _Parts(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)


class _Modules(fx.Interpreter):
    """For each call of a module, the calls of modules that its tensors come from, through functions only."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced)
        self.sources: dict[fx.Node, frozenset[int]] = {}
        self.found: list[tuple[str, frozenset[int]]] = []

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        sources = frozenset().union(*(self.sources.get(x, frozenset()) for x in n.all_input_nodes))
        if n.op == "call_module":
            self.found.append((str(n.target), sources))
            sources = frozenset({len(self.found)})
        if n.op == "placeholder":
            sources = frozenset({0})
        if n.op == "output":
            self.found.append(("output", sources))
        self.sources[n] = sources if any(tree.leaves(result)) else frozenset()
        return result


def between_modules(report: Report) -> list[tuple[str, frozenset[int]]]:
    sources: dict[int, frozenset[int]] = {}
    found: list[tuple[str, frozenset[int]]] = []
    for row in report.rows:
        came = frozenset[int]().union(*(sources[i] for i in row["inputs"]))
        if row["kind"] == "module":
            found.append((row.fqn, came))
            came = frozenset({len(found)})
        sources[row["id"]] = frozenset({0}) if row["kind"] == "input" else came
    outputs = [sources[row["id"]] for row in report.rows if row["kind"] == "output"]
    return [*found, ("output", frozenset[int]().union(*outputs))]


FX = ["densenet121", "shufflenet_v2_x0_5", "vit_b_32", "swin_t", "convnext_tiny"]
WIDE = [swept(partial(whole, name), name) for name in ("resnet18", "googlenet")]


@pytest.mark.parametrize(("make", "name"), [*each(FX), *WIDE])
def test_edges_are_those_of_fx(make: Callable[[], nn.Module], name: str) -> None:
    with torch.device("cpu"):
        model = make().eval()
    x = torch.randn(1, 3, 64, 64)
    traced = _Modules(fx.GraphModule(model, _Parts().trace(model)))
    with torch.no_grad():
        traced.run(x)
    assert between_modules(flow(model, x)) == traced.found


@pytest.mark.sweep
@pytest.mark.parametrize("name", entries())
def test_every_output_comes_from_the_input(name: str) -> None:
    [report] = capture_recipe(TorchvisionSource().recipe(Request(name, {}, None)), ["flow"])
    reached = {row["id"] for row in report.rows if row["kind"] == "input"}
    for row in report.rows:
        assert all(number < row["id"] for number in row["inputs"])
        if reached.intersection(row["inputs"]):
            reached.add(row["id"])
    outputs = [row for row in report.rows if row["kind"] == "output"]
    # Without a detection, the keypoints of none are zeros that come from nowhere.
    assert outputs and reached.issuperset(row["id"] for row in outputs if math.prod(row["output_shape"]))
    kinds = Counter(row["kind"] for row in report.rows)
    assert report.totals == {"module calls": kinds["module"], "function calls": kinds["function"]}
