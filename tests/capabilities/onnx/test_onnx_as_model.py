"""An .onnx file as a model: its operators, its weights and its figures are those of ONNX Runtime on the whole file."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support import TIMED, untouched
from torch import Tensor, nn

from hookcli import capture
from hookcli.capabilities.onnx.sessions import of_value, to_value
from hookcli.errors import UsageError
from hookcli.sources.finding import find_recipe

pytestmark = pytest.mark.xdist_group("onnx")
Cli = Callable[..., Any]
node = helper.make_node


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(6, 6, 3, padding=1, groups=2), nn.BatchNorm2d(6), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)) + x)  # type: ignore[no-any-return]


class Net(nn.Module):
    """Every kind of operator that has multiply-accumulates in PyTorch's convention."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2)
        self.blocks = nn.Sequential(Block(), Block())
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.lstm = nn.LSTM(4, 5, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(10, 7)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.up(self.blocks(self.stem(pixels)))
        x, _ = self.lstm(x.flatten(2).transpose(1, 2))
        return self.fc(x), torch.matmul(x, x.transpose(1, 2))


@pytest.fixture(scope="module")
def made() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net().eval()
        for block in model.blocks:  # equal initializers would be one
            for x in block.bn.state_dict().values():
                x.copy_(torch.rand(x.shape) + 0.5)
    return model


@pytest.fixture(scope="module")
def exported(made: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model's file, in which the batch norms are kept."""
    folder = tmp_path_factory.mktemp("as_model")
    names = {"input_names": ["pixels"], "output_names": ["scores", "products"], "dynamic_axes": {"pixels": {0: "N"}}}
    kept = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False, "dynamo": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(made, (torch.zeros(1, 3, 9, 9),), str(folder / "net.onnx"), **names, **kept)
    return folder


@pytest.fixture
def folder(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(exported)
    return exported


def value(name: str, kind: int = TensorProto.FLOAT, sizes: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, sizes)


def saved(file: str, *nodes: Any, weights: Any = (), inputs: Any = None, outputs: Any = None, opset: int = 21) -> str:
    inputs = [value("x", sizes=[2, 4])] if inputs is None else inputs
    graph = helper.make_graph(nodes, "g", inputs, outputs or [onnx.ValueInfoProto(name="y")], initializer=weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("odd", 1)]
    Path(file).write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return file


def constant(name: str, values: Any, dtype: str = "float32") -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def whole(file: str, *tensors: Tensor, every: bool = False) -> dict[str, Tensor]:
    """The outputs of ONNX Runtime on a whole file without its optimizations, or every value of it."""
    model = onnx.load(file)
    names = [one.name for one in model.graph.output]
    if every:
        more = (name for one in model.graph.node if one.op_type != "Constant" for name in one.output if name)
        for name in dict.fromkeys(more):
            if name not in names:
                model.graph.output.add().name = name
                names.append(name)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = dict(zip((one.name for one in session.get_inputs()), map(to_value, tensors), strict=True))
    return dict(zip(names, map(of_value, session.run_with_ort_values(names, feed)), strict=True))


def values_of(model: nn.Module, *tensors: Tensor) -> dict[str, Any]:
    """What every operator of a model returns, by the names of the graph."""
    seen: dict[str, Any] = {}

    def note(module: Any, _: object, output: Any) -> None:
        names = [name for name in module._node.output if name]
        seen.update(zip(names, output if len(names) > 1 else (output,), strict=True))

    handles = [part.register_forward_hook(note) for part in model.modules() if hasattr(part, "_node")]
    with torch.no_grad():
        model(*tensors)
    for handle in handles:
        handle.remove()
    return seen


def report(cli: Cli, *argv: str) -> dict[str, Any]:
    ran = cli(*argv, "--format", "json", "-q")
    assert ran.code < 2, ran.err
    return json.loads(ran.out)["reports"][0]  # type: ignore[no-any-return]


def quantized(file: str) -> str:
    """A file with quantized weights: a convolution in the form QDQ, and a product of integers."""
    rng = np.random.default_rng(0)
    weights = [
        constant("w", rng.integers(-100, 100, (4, 3, 3, 3)), "int8"),
        constant("w_scale", rng.random(4) * 0.01 + 0.01),
        constant("w_zero", [0] * 4, "int8"),
        constant("b", rng.integers(-100, 100, 4), "int32"),
        constant("b_scale", [0.001] * 4),
        constant("x_scale", 0.02),
        constant("x_zero", 3, "uint8"),
        constant("m", rng.integers(0, 255, (4, 5)), "uint8"),
        constant("shape", [-1, 4], "int64"),
    ]
    return saved(
        file,
        node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["q"], name="/conv/x_q"),
        node("DequantizeLinear", ["q", "x_scale", "x_zero"], ["d"], name="/conv/x_d"),
        node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wd"], axis=0),
        node("DequantizeLinear", ["b", "b_scale"], ["bd"], axis=0),
        node("Conv", ["d", "wd", "bd"], ["c"], name="/conv/Conv"),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1], name="Transpose"),
        node("Reshape", ["t", "shape"], ["r"], name="Reshape"),
        node("DynamicQuantizeLinear", ["r"], ["rq", "rs", "rz"], name="Quantize"),
        node("MatMulInteger", ["rq", "m", "rz"], ["y"], name="product"),
        weights=weights,
        inputs=[value("x", sizes=["N", 3, 6, 6])],
    )


@pytest.mark.parametrize("file", ["net.onnx", "quantized.onnx"])
def test_values_are_those_of_the_whole_file_bit_for_bit(folder: Path, file: str) -> None:
    torch.set_num_threads(1)  # with more, ONNX Runtime may sum in another order
    quantized("quantized.onnx")
    x = torch.randn(3, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    x = x if file == "net.onnx" else x[..., :6, :6].contiguous()
    model = find_recipe(file).build()
    seen, expected = values_of(model, x), whole(file, x, every=True)
    assert seen.keys() >= expected.keys() and len(expected) > 8
    assert all(torch.equal(seen[name], expected[name]) for name in expected)
    with torch.no_grad():
        output = model(x)
    outputs = output if isinstance(output, dict) else {"y": output}
    alone = whole(file, x)
    assert all(torch.equal(outputs[name], alone[name]) for name in alone)


def test_shapes_and_costs_are_those_of_the_pytorch_model(cli: Cli, folder: Path, made: Net) -> None:
    """Each layer has its name, its shape, its parameters and its multiply-accumulates."""
    x = torch.zeros(2, 3, 9, 9)
    expected = {row.fqn: row for row in capture(made, x, probes="shapes").rows}
    found = report(cli, "shapes", "net.onnx", "-b", "2")
    rows = {row["fqn"]: row for row in found["rows"]}
    for fqn in ("stem", "blocks", "blocks.0", "blocks.1.conv", "blocks.1.bn", "up"):
        row = expected[fqn]
        assert rows[fqn]["output_shape"] == list(row["output_shape"])
        assert (rows[fqn]["macs"], rows[fqn]["params"]) == (row["macs"], row["params"])
    assert rows["lstm"]["macs"] == expected["lstm"]["macs"] and rows["fc"]["macs"] == expected["fc"]["macs"]
    totals = capture(made, x, probes="shapes").totals
    # ONNX has no sum of the two biases of an LSTM's gates either, but all of them in one initializer.
    assert (found["totals"]["macs"], found["totals"]["params"]) == (totals["macs"], totals["params"])
    assert found["totals"]["trainable"] == 0 and not {"grad_bytes", "kept_bytes"} & found["totals"].keys()
    assert all(row["kept"] is None for row in found["rows"])
    assert report(cli, "shapes", "net.onnx", "-b", "2", "--ops", "functions")["totals"]["macs"] == totals["macs"]


@pytest.mark.sweep
def test_resnet50_has_its_published_costs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.09 GMAC and 25.6 M parameters: https://docs.pytorch.org/vision/stable/models/resnet.html."""
    torchvision = pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    model = torchvision.models.resnet50().eval()
    for x in model.state_dict().values():  # equal initializers would be one
        x.copy_(torch.rand(x.shape))
    kept = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False, "dynamo": False}
    torch.onnx.export(model, (torch.zeros(1, 3, 224, 224),), "resnet50.onnx", **kept)
    totals = report(cli, "shapes", "resnet50.onnx")["totals"]
    assert (totals["macs"], totals["params"]) == (4_089_184_256, 25_557_032)


def test_weights_are_the_initializers(cli: Cli, folder: Path, made: Net) -> None:
    found = {row["fqn"]: row for row in report(cli, "weights", "net.onnx")["rows"]}
    state = made.state_dict()
    for name in ("stem.weight", "blocks.0.conv.bias", "blocks.1.bn.weight", "blocks.0.bn.running_mean", "up.weight"):
        assert found[name]["shape"] == list(state[name].shape)
        assert found[name]["mean"] == pytest.approx(state[name].double().mean().item(), rel=1e-5, abs=1e-9)
        assert found[name]["kind"] == ("buffer" if "running" in name else "parameter")
    held = {one.name: numpy_helper.to_array(one) for one in onnx.load("net.onnx").graph.initializer}
    stored = sum(array.size for array in held.values() if array.dtype == np.float32)
    assert sum(row["numel"] for row in found.values()) == stored
    quantized("quantized.onnx")
    kinds = {row["fqn"]: (row["kind"], row["dtype"]) for row in report(cli, "weights", "quantized.onnx")["rows"]}
    assert kinds["conv.DequantizeLinear.w"] == ("parameter", "int8")
    assert kinds["conv.DequantizeLinear.w_scale"] == ("buffer", "float32")
    assert kinds["product.m"] == ("parameter", "uint8") and not any("shape" in name for name in kinds)


def test_weights_in_another_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weight = np.arange(8, dtype=np.float32).reshape(4, 2)
    saved("in.onnx", node("MatMul", ["x", "w"], ["y"]), weights=[constant("w", weight)])
    onnx.save(onnx.load("in.onnx"), "out.onnx", save_as_external_data=True, location="out.bin", size_threshold=0)
    assert Path("out.bin").stat().st_size >= 32
    rows = [report(cli, "activations", file)["rows"] for file in ("in.onnx", "out.onnx")]
    assert rows[0] == rows[1]
    assert report(cli, "weights", "out.onnx")["rows"][0]["mean"] == pytest.approx(3.5)


def control_flow(file: str) -> str:
    """A branch, a loop of three products, and a sequence of its rows."""
    then = helper.make_graph([node("MatMul", ["x", "w"], ["t"])], "then", [], [value("t")])
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [value("e")])
    nodes = [node("Identity", ["goes"], ["on"]), node("MatMul", ["a", "w"], ["b"])]
    given = [value("i", 7, []), value("goes", TensorProto.BOOL, []), value("a", sizes=[2, 4])]
    body = helper.make_graph(nodes, "body", given, [value("on", TensorProto.BOOL, []), value("b", sizes=[2, 4])])
    rng = np.random.default_rng(0)
    return saved(
        file,
        node("ReduceSum", ["x"], ["s"], keepdims=0, name="sum"),
        node("Greater", ["s", "zero"], ["positive"], name="greater"),
        node("If", ["positive"], ["z"], then_branch=then, else_branch=other, name="branch"),
        node("Loop", ["n", "", "z"], ["l"], body=body, name="loop"),
        node("SplitToSequence", ["l"], ["q"], keepdims=0, name="split"),
        node("SequenceAt", ["q", "one"], ["y"], name="at"),
        weights=[constant("w", rng.random((4, 4))), constant("zero", 0), constant("n", 3, "int64"),
                 constant("one", 1, "int64")],
    )  # fmt: skip


def test_control_flow_is_listed(cli: Cli, folder: Path) -> None:
    file = control_flow("flow.onnx")
    found = report(cli, "shapes", file)
    types = {row["fqn"]: row["type"] for row in found["rows"]}
    assert types == {"": "Graph", "sum": "ReduceSum", "greater": "Greater", "branch": "If", "loop": "Loop",
                     "split": "SplitToSequence", "at": "SequenceAt"}  # fmt: skip
    assert "2 operators with graphs within" in found["meta"]["notes"][0] and "1 If, 1 Loop" in found["meta"]["notes"][0]
    assert [one["reason"] for one in found["skipped"]] == ["no known cost for If, Loop: MACs not counted"]
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    row = next(row for row in report(cli, "activations", file)["rows"] if row["fqn"] == "at")
    expected = whole(file, x)["y"].double()
    assert (row["mean"], row["max"]) == pytest.approx((expected.mean().item(), expected.max().item()), rel=1e-5)


def test_two_files_are_compared_as_models(cli: Cli, folder: Path) -> None:
    model = onnx.load("net.onnx")
    weight = next(one for one in model.graph.initializer if one.name == "blocks.1.conv.weight")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.5), weight.name))
    onnx.save(model, "changed.onnx")
    same = cli("diff", "net.onnx", "onnx:net.onnx", "-f", "json", "-q")
    assert same.code == 0 and "bit for bit" in json.loads(same.out)["reports"][0]["totals"]["verdict"]
    found = report(cli, "diff", "net.onnx", "changed.onnx")
    assert found["totals"]["verdict"].startswith("First difference: blocks.1.conv")
    beyond = [row["fqn"] for row in found["rows"] if row.get("beyond")]
    assert "blocks.1.conv" in beyond and "blocks.0" not in beyond and "stem" not in beyond
    for name, argv in (("saved.json", ("-o", "saved.json")), ("dumped", ("--dump", "dumped"))):
        assert cli("activations", "net.onnx", *argv, "-q").code == 0
        assert cli("diff", name, "net.onnx").code == 0 and cli("diff", "changed.onnx", name).code == 1


def test_a_weight_that_changes_counts(folder: Path) -> None:
    """Edits, copies and replaced modules are seen: nothing of a weight is kept in a session."""
    model = find_recipe("net.onnx").build()
    x = torch.randn(1, 3, 9, 9, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before = model(x)["scores"]
        twin = copy.deepcopy(model)
        model.get_submodule("stem").weight.mul_(0.5)
        changed = model(x)["scores"]
        assert not torch.equal(before, changed) and torch.equal(before, twin(x)["scores"])
        for factor, same in ((0.5, False), (2, True)):  # past PyTorch's count of changes
            for parameter in twin.parameters():
                parameter.data.mul_(factor)
            assert torch.equal(twin(x)["scores"], before) == same
    file = onnx.load("net.onnx")
    weight = next(one for one in file.graph.initializer if one.name == "stem.weight")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(0.5), weight.name))
    onnx.save(file, "halved.onnx")
    assert torch.equal(changed, whole("halved.onnx", x)["scores"])


def test_hooks_change_nothing(folder: Path) -> None:
    model = find_recipe("net.onnx").build()
    x = torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        expected = model(x)
    with untouched(model):
        capture(model, x, probes=["shapes", "activations", "inputs"])
    with torch.no_grad():
        assert all(torch.equal(model(x)[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("grads", "net.onnx"), "no gradients: net.onnx is a frozen graph"),
        (("trace", "net.onnx"), "no gradients: net.onnx is a frozen graph"),
        (("diff", "net.onnx", "onnx:net.onnx", "--backward"), "no gradients: net.onnx is a frozen graph"),
        (("shapes", "net.onnx", "--weights", "w.pt"), "--weights w.pt: net.onnx is a frozen graph"),
        (("weights", "net.onnx", "--weights", "w.pt"), "--weights w.pt: net.onnx is a frozen graph"),
        (("activations", "net.onnx", "--dtype", "float16"), "--dtype: the operators of net.onnx have their own dtypes"),
        (("shapes", "net.onnx", "--arg", "a=1"), "--arg: net.onnx takes no arguments"),
        (("shapes", "net.onnx", "-i", "3x9"), "net.onnx: takes Nx3x9x9 as pixels, and gets 3x9"),
        (("shapes", "net.onnx", "-i", "1x3x9x9", "-i", "1"), "net.onnx: takes pixels, and gets 2 inputs"),
        (("shapes", "missing.onnx"), "missing.onnx: can't be read (No such file"),
        (("diff", "net.onnx", "missing.onnx"), "missing.onnx: can't be read (No such file"),
        (("diff", "net.onnx", "w.pt"), "weights belong to a model"),
    ],
    ids=lambda argv: "-".join(argv).replace("/", "") if isinstance(argv, tuple) else "",
)
def test_what_it_has_not_is_refused_in_one_line(cli: Cli, folder: Path, argv: tuple[str, ...], said: str) -> None:
    if not Path("w.pt").exists():
        torch.save({"w": torch.zeros(1)}, "w.pt")
    ran = cli(*argv)
    assert ran.code == 2 and said in ran.err.splitlines()[-1], ran.err


def test_checks_judge_it_without_gradients(cli: Cli, folder: Path) -> None:
    ran = cli("check", "net.onnx")
    assert ran.code == 0 and "nothing requires a gradient" in ran.out, ran.out + ran.err
    weights = [constant("w", [[np.inf, 0, 0, 0]] * 4)]
    saved("broken.onnx", node("MatMul", ["x", "w"], ["y"], name="product"), weights=weights)
    ran = cli("check", "broken.onnx", "-f", "json", "-q")
    found = {one["check"] for one in json.loads(ran.out)["reports"][0]["findings"]}
    assert ran.code == 1 and {"HK003", "HK005"} & found


def test_open_sizes_and_indices(cli: Cli, folder: Path) -> None:
    """Open sizes are 1 and said, unless given; indices are below the rows of their table."""
    table = constant("table", np.zeros((9, 4)))
    ids = [value("ids", TensorProto.INT64, ["N", "T"])]
    saved("ids.onnx", node("Gather", ["table", "ids"], ["y"], name="embed"), weights=[table], inputs=ids)
    found = report(cli, "activations", "ids.onnx")
    assert found["meta"]["input"] == "1x1:int64" and "(ids: NxN)" in found["meta"]["notes"][0]
    given = report(cli, "inputs", "ids.onnx", "-i", "8x64")
    assert given["meta"]["input"] == "8x64:int64" and given["rows"][0]["max"] == 8


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "custom": ({"nodes": [node("Odd", ["x"], ["y"], domain="odd")]}, "ONNX Runtime can't run odd.Odd"),
    "unknown": ({"nodes": [node("NoSuch", ["x"], ["y"])]}, "No Op registered for NoSuch"),
    "unsorted": (
        {"nodes": [node("Relu", ["a"], ["y"], name="relu"), node("Neg", ["x"], ["a"])]},
        "damaged: relu takes 'a', which no operator before it makes",
    ),
    "absent": ({"nodes": [node("Relu", ["z"], ["y"])]}, "'z' is not a graph input"),
    "cut": (
        {
            "nodes": [node("Add", ["x", "w"], ["y"])],
            "weights": [TensorProto(name="w", data_type=1, dims=[2**40, 4], raw_data=bytes(4))],
        },
        "the initializer 'w' is damaged",
    ),
    "huge": (
        {
            "nodes": [node("Expand", ["x", "s"], ["a"]), node("Relu", ["a"], ["y"])],
            "weights": [constant("s", [2**36, 2, 4], "int64")],
        },
        "more memory than this machine has available",
    ),
    "texts": (
        {"nodes": [node("Identity", ["x"], ["y"])], "inputs": [value("x", TensorProto.STRING, [2])]},
        "its input x is a tensor of texts, which hookcli can't make",
    ),
    "rank": ({"nodes": [node("Relu", ["x"], ["y"])], "inputs": [value("x")]}, "input shape needed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_cannot_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    parts, said = HOSTILE[name]
    parts = dict(parts)
    ran = cli("activations", saved(f"{name}.onnx", *parts.pop("nodes"), **parts))
    assert ran.code == 2 and said in ran.err.splitlines()[-1], ran.err


def test_names_that_modules_can_not_have(tmp_path: Path) -> None:
    """Each operator has a module of its own, whatever it is called, and however long."""
    names = ["/forward/training/Relu", "/forward/_modules/Relu", "/current/add/x", "same", "same", "same_1", ""]
    names += ["/" + "a/" * 100_000 + "Relu", "a." * 100_000, "a" * 1_000_000, "/\x1b[31m<b>/ü:1_1"]
    nodes = [node("Relu", [f"v{n}"], [f"v{n + 1}"], name=name) for n, name in enumerate(names)]
    ends = {"inputs": [value("v0", sizes=[2])], "outputs": [value(f"v{len(names)}", sizes=[2])]}
    file = saved(str(tmp_path / "names.onnx"), *nodes, **ends)
    model = find_recipe(file).build()
    x = torch.tensor([-1.0, 2.0])
    assert torch.equal(model(x), x.relu()) and len(values_of(model, x)) == len(names)
    placed = [fqn for fqn, part in model.named_modules() if type(part).__name__ == "Relu"]
    assert len(placed) == len(names) and max(map(len, placed)) < 500 and not any(":" in fqn for fqn in placed)


def test_scopes_that_are_left_and_entered_again(tmp_path: Path) -> None:
    """Operators of one scope that others come between are two calls of it."""
    names = ("/a/first/Relu", "/a/first/Neg", "/b/Abs", "/a/second/Neg", "/a/second/Relu")
    kinds = [name.rpartition("/")[2] for name in names]
    inputs = [["x"], ["v0"], ["v1"], ["v2"], ["v3"]]
    nodes = [
        node(k, i, [f"v{n}"], name=f"{m}_{n}") for n, (m, k, i) in enumerate(zip(names, kinds, inputs, strict=True))
    ]
    nodes.append(node("Add", ["v4", "v0"], ["y"], name="sum"))
    model = find_recipe(saved(str(tmp_path / "scopes.onnx"), *nodes)).build()
    x = torch.randn(2, 4)
    assert torch.equal(model(x), x.relu().neg().abs().neg().relu() + x.relu())
    rows = [(row.fqn, row["call"]) for row in capture(model, x, probes="activations").rows]
    assert sorted({row for row in rows if row[0] in ("a", "a.first", "b")}) == [
        ("a", 0),
        ("a", 1),
        ("a.first", 0),
        ("b", 0),
    ]


def test_half_precision_and_types_that_pytorch_lacks(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    half = constant("w", np.eye(4), "float16")
    ends = {"inputs": [value("x", TensorProto.FLOAT16, [2, 4])], "outputs": [value("y", TensorProto.FLOAT16)]}
    saved("half.onnx", node("MatMul", ["x", "w"], ["y"], name="product"), weights=[half], **ends)
    found = report(cli, "activations", "half.onnx")
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).half()
    assert found["rows"][0]["dtype"] == "float16"
    assert found["rows"][0]["max"] == pytest.approx(x.max().item(), rel=1e-3)
    four_bits = helper.make_tensor("w", TensorProto.INT4, [4, 2], [*range(-4, 4)])
    nodes = [node("DequantizeLinear", ["w", "s"], ["d"]), node("MatMul", ["x", "d"], ["y"], name="product")]
    file = saved("narrow.onnx", *nodes, weights=[four_bits, constant("s", 0.5)])
    found = report(cli, "activations", file)
    assert "1 initializer of INT4 not shown" in found["meta"]["notes"][0]
    y = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)) @ (torch.arange(-4.0, 4).view(4, 2) / 2)
    row = next(row for row in found["rows"] if row["fqn"] == "product")
    assert row["mean"] == pytest.approx(y.double().mean().item(), rel=1e-5)


def test_inputs_by_name_and_number(folder: Path) -> None:
    model = find_recipe("net.onnx").build()
    x = torch.randn(1, 3, 9, 9)
    assert torch.equal(model(pixels=x)["scores"], model(x)["scores"])
    with pytest.raises(UsageError, match="takes pixels, and gets 2 inputs"):
        model(x, x)


@pytest.mark.sweep
def test_ctrl_c_ends_a_loop_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = [node("Identity", ["goes"], ["on"]), node("Neg", ["a"], ["b"])]
    given = [value("i", 7, []), value("goes", TensorProto.BOOL, []), value("a", sizes=[2, 4])]
    body = helper.make_graph(nodes, "body", given, [value("on", TensorProto.BOOL, []), value("b", sizes=[2, 4])])
    saved("endless.onnx", node("Loop", ["", "go", "x"], ["y"], body=body), weights=[constant("go", True, "bool")])
    argv = (sys.executable, "-c", TIMED, "2", "activations", "endless.onnx")
    ran = forks.run(argv, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (130, "hookcli: interrupted\n")
