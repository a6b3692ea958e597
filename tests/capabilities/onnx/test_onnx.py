"""A PyTorch model against its .onnx file, which ONNX Runtime runs on the same input."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import forks
import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization
from support import TIMED, swept

from hookcli.capabilities.onnx.graph import operators

pytestmark = pytest.mark.xdist_group("onnx")  # one export
Cli = Any
MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.act(self.bn(self.conv(x))) + 1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.blocks = nn.ModuleList([Block()])
            self.drop = nn.Dropout()
            self.fc = nn.Linear(8, 8)
            self.lstm = nn.LSTM(8, 4, batch_first=True)
            self.head = nn.Sequential(nn.Linear(4, 4), nn.GELU())
            nn.init.normal_(self.blocks[0].bn.weight)
            self.blocks[0].bn.running_mean.normal_()

    def forward(self, x):
        x = self.drop(self.blocks[0](x).flatten(2).transpose(1, 2))
        for _ in range(3):
            x = self.fc(x)
        x, state = self.lstm(x)
        return self.head(x), state
"""
ROWS = [  # of what both sides have, in order
    *("", "", "", "blocks.0", "blocks.0.bn", "blocks.0.act", "blocks.0.act", "fc", "fc", "fc"),
    *("lstm", "lstm", "lstm", "head", "head.0", "head.1"),
]
INPUT = ("-i", "2x3x4x4")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, exported by both of PyTorch's exporters, and quantized ones."""
    folder = tmp_path_factory.mktemp("onnx")
    (folder / "net.py").write_text(MODEL)
    made: dict[str, Any] = {}
    exec(MODEL, made)
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    here = Path.cwd()
    os.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(made["Net"]().eval(), (x,), "dynamo.onnx", dynamo=True, verbose=False)
        torch.onnx.export(made["Net"]().eval(), (x,), "script.onnx", dynamo=False, input_names=["pixels"])
        for name, reader in (("dynamo", "x"), ("script", "pixels")):
            quantization.quantize_dynamic(f"{name}.onnx", f"{name}-dynamic.onnx")
            quantization.quantize_static(f"{name}.onnx", f"{name}-static.onnx", Readings(reader))
    os.chdir(here)
    return folder


class Readings(quantization.CalibrationDataReader):
    def __init__(self, name: str) -> None:
        self._batches = iter([{name: np.random.RandomState(n).randn(2, 3, 4, 4).astype(np.float32)} for n in range(2)])

    def get_next(self) -> Any:
        return next(self._batches, None)


@pytest.fixture
def folder(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(exported)
    return exported


def report(cli: Cli, *argv: str) -> tuple[int, dict[str, Any]]:
    ran = cli("diff", *argv, "--format", "json", "-q")
    assert ran.code < 2, ran.err
    return ran.code, json.loads(ran.out)["reports"][0]


@pytest.mark.parametrize("name", ["dynamo", "script"])
def test_both_exporters(cli: Cli, folder: Path, name: str) -> None:
    """Every module but those that the exporter removed is paired, by call and path, and equal to rounding."""
    code, found = report(cli, "net.py:Net", f"{name}.onnx")
    assert code == 0 and [row["fqn"] for row in found["rows"]] == ROWS
    assert [row["call"] for row in found["rows"] if row["fqn"] == "fc"] == [0, 1, 2]
    assert all(0 <= row["rel_l2"] < 1e-5 for row in found["rows"])
    assert {row["fqn"]: row["reason"].partition(":")[0] for row in found["skipped"]} == {
        "blocks.0.conv": f"folded into the batch norm after it, whose output {name}.onnx has",
        "drop": f"{name}.onnx has no operator of it",
    }
    assert "2 modules only in A" in found["totals"]["verdict"]


def test_the_tensors_are_those_of_onnx_runtime(cli: Cli, folder: Path) -> None:
    """The figures are those of ONNX Runtime's output and PyTorch's, computed here."""
    made: dict[str, Any] = {}
    exec(MODEL, made)
    model = made["Net"]().eval()
    with torch.no_grad():
        x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        ours = model(x)[0].double()
    session = onnxruntime.InferenceSession("script-dynamic.onnx", providers=["CPUExecutionProvider"])
    theirs = torch.from_numpy(session.run(None, {"pixels": x.numpy()})[0]).double()
    code, found = report(cli, "net.py:Net", "script-dynamic.onnx", *INPUT)
    row = found["rows"][0]
    # Not to the last bit: ONNX Runtime merges fewer operators where values between them are asked for.
    assert code == 1 and row["max_abs"] == pytest.approx((ours - theirs).abs().max().item(), rel=0.1)
    assert row["rel_l2"] == pytest.approx(((ours - theirs).norm() / ours.norm()).item(), rel=0.1)


@pytest.mark.parametrize("name", ["dynamo-dynamic", "script-static", *map(swept, ("script-dynamic", "dynamo-static"))])
def test_quantized(cli: Cli, folder: Path, name: str) -> None:
    """The errors are those of eight bits, and no value is taken for another module's.

    Kernels for processors without VNNI saturate at sixteen bits, which takes up to half of an LSTM's state; two values
    that have nothing to do with each other are 1.4 apart.
    """
    code, found = report(cli, f"{name}.onnx", "net.py:Net")
    assert code == 1 and found["rows"][0]["rel_l2"] > 1e-4
    assert all(row["rel_l2"] < 0.7 for row in found["rows"])
    left = {"blocks.0.bn"} if "static" in name else set()  # the ReLU is merged with it
    left |= {"fc"} if name == "script-dynamic" else set()  # only its first call is quantized, so calls look unlike
    assert {row["fqn"] for row in found["rows"]} == {*ROWS} - left
    assert found["totals"]["verdict"].startswith("First difference: blocks.0")


def test_batches_and_narrowing(cli: Cli, folder: Path) -> None:
    text = "import torch\ntorch.manual_seed(0)\nx = [torch.randn(2, 3, 4, 4) for _ in range(3)]\n"
    (folder / "batches.py").write_text(text)
    argv = ("net.py:Net", "dynamo.onnx", "--data", "batches.py:x", "--batches", "all")
    code, found = report(cli, *argv)
    assert code == 0 and len(found["rows"]) == 3 * len(ROWS) and max(row["rel_l2"] for row in found["rows"]) < 1e-5
    assert [row["fqn"] for row in report(cli, "net.py:Net", "dynamo.onnx", "--match", "head*")[1]["rows"]] == ROWS[-3:]


def test_the_model_computes_what_it_does_alone(folder: Path, cli: Cli) -> None:
    """The same bits, with the same random numbers."""
    text = "import net\n\nclass Noted(net.Net):\n    def forward(self, x):\n        out = super().forward(x)\n"
    text += (
        "        with open('seen.bin', 'ab') as file:\n            file.write((out[0] + net.torch.rand(1)).numpy())\n"
    )
    (folder / "noted.py").write_text(f"{text}        return out\n")
    bits = []
    for argv in (("activations", "noted.py:Noted", *INPUT), ("diff", "noted.py:Noted", "script.onnx", *INPUT)):
        assert cli(*argv).code == 0
        bits.append(Path("seen.bin").read_bytes()[-2 * 16 * 4 * 4 :])
    assert bits[0] == bits[1]


def saved(
    file: str, *nodes: Any, weights: Any = (), domain: str = "", kind: int = TensorProto.FLOAT, ranked: bool = True
) -> str:
    ends = [helper.make_tensor_value_info(n, kind, [2, 3, 4, 4] if n == "x" and ranked else None) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializer=weights)
    opsets = [helper.make_opsetid(name, 18) for name in {"", domain}]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    Path(file).write_bytes(model.SerializeToString())
    return file


def outside(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def test_hostile_files(cli: Cli, folder: Path) -> None:
    """A file can run no code, read nothing outside its folder, and take no more memory than there is."""
    Path("../secret.bin").write_bytes(bytes(16))
    Path("link.bin").symlink_to("../secret.bin")
    node, copy = helper.make_node, helper.make_node("Identity", ["w"], ["y"])
    huge = numpy_helper.from_array(np.array([2**30, 2, 3, 4, 4]), "s")
    relu = saved("good.onnx", node("Relu", ["x"], ["y"]))
    Path("cut.onnx").write_bytes(Path(relu).read_bytes()[:40])
    Path("empty.onnx").write_bytes(b"")
    cases = {
        saved(
            "code.onnx", node("Evil", ["x"], ["y"], domain="evil"), domain="evil"
        ): "evil:Evil(-1) is not a registered function",
        saved("op.onnx", node("NoSuch", ["x"], ["y"])): "No Op registered for NoSuch",
        saved("huge.onnx", node("Expand", ["x", "s"], ["b"]), node("Relu", ["b"], ["y"]), weights=[huge]): (
            "more memory than this machine has available"
        ),
        saved("absolute.onnx", copy, weights=[outside("/etc/passwd")]): "leads out of",
        saved("up.onnx", copy, weights=[outside("../secret.bin")]): "leads out of",
        saved("link.onnx", copy, weights=[outside("link.bin")]): "a link that leads out",
        saved("address.onnx", copy, weights=[outside("*/_ORT_MEM_ADDR_/*")]): "No such file",
        saved("bfloat.onnx", node("Identity", ["x"], ["y"]), kind=TensorProto.BFLOAT16): "unsupported ScalarType",
        saved("inner.onnx", node("Constant", [], ["w"], value=outside("/etc/passwd")), copy): "leads out of",
        "cut.onnx": "damaged, or not an ONNX model",
        "empty.onnx": "damaged, or not an ONNX model",
        "none.onnx": "No such file",
    }
    any_rank = saved("rank.onnx", node("Relu", ["x"], ["y"]), ranked=False)
    assert "no module in common" in cli("diff", "net.py:Net", any_rank, *INPUT).err  # and ran
    for file, said in cases.items():
        ran = cli("diff", "net.py:Net", file, *INPUT)
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1) and said in ran.err, (file, ran.err)


@pytest.mark.sweep
def test_ctrl_c_ends_a_model_that_loops_without_end(folder: Path) -> None:
    node = helper.make_node
    kept = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("goes", "on")]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 4, 4]) for name in ("a", "b")]
    counted = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    nodes = [node("Identity", ["goes"], ["on"]), node("Neg", ["a"], ["b"])]
    body = helper.make_graph(nodes, "body", [counted, kept[0], given[0]], [kept[1], given[1]])
    always = numpy_helper.from_array(np.array(True), "always")
    saved("endless.onnx", node("Loop", ["", "always", "x"], ["y"], body=body), weights=[always])
    ran = forks.run(
        (sys.executable, "-c", TIMED, "2", "diff", "net.py:Net", "endless.onnx", *INPUT),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (130, "hookcli: interrupted\n")


def test_wrong_sides(cli: Cli, folder: Path) -> None:
    for argv, said in (
        (("net.py:Net", "dynamo.onnx", "--ops", "functions"), "--ops: an .onnx file has no operators of PyTorch"),
        (("net.py:Net", "dynamo.onnx", "--backward"), "--backward: both sides must be models, not .onnx files"),
        (("net.py:Net", "dynamo.onnx", "-i", "4x3x4x4"), "dynamo.onnx: takes 2x3x4x4 as x, and gets 4x3x4x4"),
        (("net.py:Net", "dynamo.onnx", "-b", "4"), "dynamo.onnx: takes 2x3x4x4 as x, and gets 4x3x4x4"),
    ):
        ran = cli("diff", *argv)
        assert (ran.code, ran.out) == (2, "") and said in ran.err, ran.err


def test_names_of_very_many_segments_name_no_module() -> None:
    for name in ("/" + "a/" * 100_000 + "Conv", "/" + "a/" * 2 + "Conv"):
        node = helper.make_node("Conv", ["x"], ["y"], name=name)
        graph = helper.make_graph([node], "g", [], [])
        [operator] = operators(graph, {"a", "a.a"}, [])
        assert operator.scope == (None if len(name) > 100 else "a.a")


DROPS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(p)

    def forward(self, x):
        return self.drop(self.bn(self.conv(x)))

class Drops(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("Net", {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING}, "1 BatchNormalization and 1 Dropout"),
        ("Net", {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING, "opset_version": 12}, "1 Batch"),
        swept("Drops", {"dynamo": True, "verbose": False}, "1 Dropout act as in training"),
        ("Net", {"dynamo": False}, ""),
    ],
    ids=["script", "opset12", "dynamo", "eval"],
)
def test_a_file_that_was_exported_in_train_mode_is_named_so(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("drops.py").write_text(DROPS)
    made: dict[str, Any] = {}
    exec(DROPS, made)
    x = torch.randn(4, 3, 6, 6) if name == "Net" else torch.randn(3, 4)
    torch.onnx.export(made[name]().train(bool(says)), (x,), "net.onnx", **options)
    _, found = report(cli, f"drops.py:{name}", "net.onnx", "-i", "x".join(map(str, x.shape)))
    verdict = found["totals"]["verdict"]
    assert verdict.startswith(f"net.onnx was exported in train mode ({says}") == bool(says)
    assert ("train mode" in verdict) == bool(says)
