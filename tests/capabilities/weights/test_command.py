"""`hookcli weights`: files, folders and models, as people ask for them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import swept

from hookcli.capabilities.weights.command import EXAMPLES
from hookcli.table.files import read_reports
from hookcli.tensors.stats import stats

Cli = Callable[..., Any]
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.layers[0].weight

    def forward(self, x):
        return self.head(x)

class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(3)
"""
QUANTIZED = """
import warnings
import torch
from torch import nn
from torch.ao import quantization

warnings.simplefilter("ignore")
torch.manual_seed(0)
PLAIN = {
    "linear": lambda: nn.Linear(8, 4),
    "lstm": lambda: nn.LSTM(4, 2, bidirectional=True),
    "cell": lambda: nn.GRUCell(4, 2),
    "embedding": lambda: nn.EmbeddingBag(10, 8),
}

def made(name):
    model = nn.Sequential(PLAIN[name]())
    if name == "embedding":
        model.qconfig = quantization.float_qparams_weight_only_qconfig
        return quantization.convert(quantization.prepare(model))
    return quantization.quantize_dynamic(model)

def linear(): return made("linear")
def lstm(): return made("lstm")
def cell(): return made("cell")
def embedding(): return made("embedding")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    state = {f"layers.{i}.weight": torch.randn(8, 4) for i in range(3)} | {"head.bias": torch.zeros(8).bfloat16()}
    state["layers.1.weight"][0, 0] = 1e6
    save_file(state, "a.safetensors", {"made": "here"})
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"step": torch.ones(1)}}, "a.pt")
    Path("net.py").write_text(NET)
    return tmp_path


def rows(cli: Cli, *words: str) -> dict[str, dict[str, Any]]:
    ran = cli("weights", *words, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    return {row["fqn"]: row for report in json.loads(ran.out)["reports"] for row in report["rows"]}


def test_a_file(cli: Cli, folder: Path) -> None:
    found = rows(cli, "a.safetensors", "--spectral")
    state = torch.load("a.pt", weights_only=True)["state_dict"]
    for name, x in state.items():
        row, expected = found[name], stats(x)
        assert (row["shape"], row["bytes"], row["dtype"]) == (list(x.shape), x.nbytes, str(x.dtype)[6:])
        assert (row["mean"], row["l2"]) == pytest.approx((expected.mean, expected.l2), rel=1e-5, abs=1e-6)
    norm = torch.linalg.matrix_norm(state["layers.0.weight"].double(), 2).item()
    assert found["layers.0.weight"]["spectral_norm"] == pytest.approx(norm, rel=5e-4)
    assert found["head.bias"]["spectral_norm"] is None
    table = cli("weights", "a.safetensors", "--depth", "all").out
    assert table.startswith("a.safetensors · safetensors\n")
    assert "4 tensors · 104 elements · 400 B · bfloat16 16 B, float32 384 B" in table
    assert [*rows(cli, "a.pt")] == [*state]
    assert "a.pt: the state dict under 'state_dict'; 1 other tensor in the file" in cli("weights", "a.pt").out
    (line,) = (line for line in table.splitlines() if line.startswith("layers.1.weight"))
    assert "3.1%" in line  # of float16's range


@pytest.mark.parametrize("line", [swept(line) if "resnet18" in line else line for line in EXAMPLES])
def test_examples(cli: Cli, folder: Path, line: str) -> None:
    Path("checkpoint").mkdir()
    for name in ("model.safetensors", "checkpoint/model.safetensors"):
        Path(name).write_bytes(Path("a.safetensors").read_bytes())
    writer = gguf.GGUFWriter("llama.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    space: dict[str, Any] = {}
    exec(NET, space)
    torch.save(space["Net"]().state_dict(), "new.pt")
    ran = cli(*shlex.split(line)[1:])
    assert (ran.code, ran.err) == (0, "") and ran.out.count("\n") > 3


def test_headers_alone(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.capabilities.weights.report.measured", None)
    header = {"fqn", "shape", "dtype", "bytes"}
    assert all(row.keys() == header for row in rows(cli, "a.safetensors", "--no-stats").values())
    assert len(rows(cli, "a.safetensors", "--columns", "fqn,bytes", "--sort", "-bytes")) == 4
    ran = cli("weights", "a.safetensors", "a.pt", "--no-stats", "-o", "both.json")
    assert ran.code == 0 and [report.model for report in read_reports("both.json")] == ["a.safetensors", "a.pt"]
    assert read_reports("both.json")[0].meta["metadata"] == {"made": "here"}
    assert "wrote both.json: 2 reports, 8 rows" in ran.err
    assert cli("show", "both.json").out.startswith("a.safetensors · safetensors\n")


def test_rows_group_by_module(cli: Cli, folder: Path) -> None:
    shown = cli("weights", "net.py:Net", "--depth", "1", "--columns", "fqn,bytes,max").out.splitlines()
    assert [line.partition("  ")[0] for line in shown[3:8]] == [
        *(f"layers.{i} (2)" for i in range(3)),
        "norm (5)",
        "head.bias",
    ]
    shown = cli("weights", "a.safetensors", "--depth", "1", "--columns", "fqn,bytes,max").out.splitlines()
    assert [line.split()[0] for line in shown[3:7]] == ["head.bias", *(f"layers.{i}.weight" for i in range(3))]
    narrowed = rows(cli, "a.safetensors", "--match", "layers.1")
    assert [*narrowed] == ["layers.1.weight"]


def test_hostile_names(cli: Cli, folder: Path) -> None:
    names = ["", "..", "a\x1b[31mred", "[bold]x[/bold]\nline", "<script>"]
    save_file({name: torch.ones(2) for name in names}, "evil.safetensors")
    assert set(rows(cli, "evil.safetensors")) == set(names)
    ran = cli("weights", "evil.safetensors", "--depth", "all", "--columns", "fqn,max")
    assert "\x1b" not in ran.out and "[bold]x[/bold]\\nline" in ran.out and len(ran.out.splitlines()) == 9
    torch.save({name: torch.ones(2) for name in names}, "evil.pt")
    ran = cli("diff", "evil.safetensors", "evil.pt")
    assert ran.code == 0 and ran.out.startswith("5 tensors compared: identical")


def test_a_model(cli: Cli, folder: Path) -> None:
    found = rows(cli, "net.py:Net", "--seed", "3")
    assert found["norm.running_var"]["kind"] == "buffer" and found["norm.num_batches_tracked"]["dtype"] == "int64"
    assert found["layers.0.weight"]["type"] == "Linear" and "head.weight" not in found
    report = json.loads(cli("weights", "net.py:Net", "--no-stats", "-f", "json").out)["reports"][0]
    assert report["skipped"] == [{"fqn": "head.weight", "reason": "tied to layers.0.weight", "kind": "tied"}]
    assert report["totals"]["elements"] == 3 * 20 + 4 + 17 and report["meta"]["containers"] == ["layers"]
    torch.save({f"layers.{i}.weight": torch.full((4, 4), 2.0) for i in range(3)}, "w.pt")
    assert rows(cli, "net.py:Net", "--weights", "w.pt", "--no-strict", "-q")["layers.2.weight"]["mean"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.safetensors",), "none.safetensors: no such file"),
        (("a.safetensors", "--seed", "1"), "--seed: a.safetensors is a file of tensors, not a model"),
        (("a.safetensors", "--no-strict"), "--no-strict: a.safetensors is a file of tensors"),
        (("a.safetensors", "--match", "nope"), "--match: no module or parameter matches 'nope'"),
        (("a.safetensors", "--columns", "means"), "--columns: unknown column 'means'; did you mean mean"),
        (("net.py",), "net.py"),
        (("notes.txt",), "notes.txt: holds no tensors (.safetensors, .gguf"),
        (("empty",), "empty: holds no tensors"),
        (("net.py:Lazy",), "fc.weight is lazy"),
    ],
)
def test_mistakes(cli: Cli, folder: Path, words: tuple[str, ...], said: str) -> None:
    Path("notes.txt").write_text("nothing")
    Path("empty").mkdir()
    ran = cli("weights", *words)
    assert (ran.code, ran.out) == (2, "") and said in ran.err and len(ran.err.splitlines()) <= 2


def test_what_was_read_before_a_failure_is_shown(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hookcli.capabilities.weights import report as weights_report

    def fails(tensor: Any, tell: Any) -> Any:
        if tensor.name == "layers.1.weight":
            Path("a.safetensors").write_bytes(b"")
        return measured(tensor, tell)

    measured = weights_report.measured
    monkeypatch.setattr(weights_report, "measured", fails)
    ran = cli("weights", "a.safetensors", "--depth", "all")
    assert ran.code == 2 and "layers.0.weight" in ran.out and "incomplete" in ran.out
    assert "a.safetensors: damaged: it ends within a tensor" in ran.err


def sparse(file: Path, nbytes: int) -> None:
    """A safetensors file of bfloat16 matrices of zeros that takes no room on the disk."""
    count = nbytes // (2 << 26)
    entries = {
        f"layers.{i}.weight": {"dtype": "BF16", "shape": [8192, 8192], "data_offsets": [i << 27, (i + 1) << 27]}
        for i in range(count)
    }
    text = json.dumps(entries).encode()
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + (count << 27))


MEASURED = """
import pathlib, re, sys
from hookcli.cli import main
code = main(sys.argv[1:])
status = pathlib.Path("/proc/self/status").read_text()  # getrusage would count what this process was before exec
print(code, "torch" in sys.modules, re.search(r"VmHWM:\\s+(\\d+)", status)[1], file=sys.stderr)
"""


@pytest.mark.parametrize("gib", [0.25, pytest.param(10, marks=pytest.mark.sweep)])
def test_memory_is_bounded_and_torch_not_imported(gib: float, tmp_path: Path) -> None:
    sparse(tmp_path / "a.safetensors", int(gib * 2**30))
    words = ["weights", "a.safetensors", "-q", "--depth", "all", "--columns", "fqn,numel,zeros"]
    ran = forks.run([sys.executable, "-c", MEASURED, *words], fresh=True, capture_output=True, text=True, cwd=tmp_path)
    code, torch_is_there, kib = ran.stderr.split()
    assert (code, torch_is_there) == ("0", "False") and int(kib) * 1024 < 200e6
    assert ran.stdout.count("67,108,864   100%") == gib * 8


def test_grouped_rows_keep_the_spectral_columns(cli: Cli, folder: Path) -> None:
    matrices = {"enc.x.weight": torch.diag(torch.tensor([3.0, 3.0])), "enc.y.weight": torch.tensor([[5.0, 0], [0, 0]])}
    save_file(matrices, "two.safetensors")
    words = ("--spectral", "--depth", "1", "--columns", "fqn,spectral_norm,stable_rank")
    [line] = [line.split() for line in cli("weights", "two.safetensors", *words).out.splitlines() if "enc" in line]
    assert line == ["enc", "(2)", "5.000", "1.000"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["linear", "lstm", "cell", "embedding"])
def test_packed_weights_of_quantized_modules_are_shown(cli: Cli, folder: Path, name: str) -> None:
    """PyTorch has neither parameters nor buffers for them; the names are those of the module before."""
    Path("quantized.py").write_text(QUANTIZED)
    found = rows(cli, f"quantized.py:{name}")
    made: dict[str, Any] = {}
    exec(QUANTIZED, made)
    plain = made["PLAIN"][name]()
    assert {key: row["shape"] for key, row in found.items()} == {
        f"0.{key}": [*x.shape] for key, x in plain.named_parameters()
    }
    for key, x in plain.named_parameters():
        row = found[f"0.{key}"]
        assert row["mean"] == pytest.approx(x.mean().item(), abs=0.02), "values are dequantized"
        assert row["dtype"] == ("float32" if "bias" in key else "quint8" if name == "embedding" else "qint8")


def test_a_model_without_tensors_says_so(cli: Cli, folder: Path) -> None:
    Path("none.py").write_text("import torch\n\ndef make():\n    return torch.nn.Sequential(torch.nn.ReLU())\n")
    ran = cli("weights", "none.py:make")
    assert ran.code == 0 and ran.out.splitlines()[-1] == "No tensors"
