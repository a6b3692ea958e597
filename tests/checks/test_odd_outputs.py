"""A model may return tensors of any layout and dtype, or none: checks judge what can be compared, and list the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import swept, untouched
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hookcli.cli import main
from hookcli.engine.checking import check
from hookcli.engine.outputs import plain


def nested(y: Tensor, layout: Any) -> Tensor:
    return torch.nested.as_nested_tensor([y[0:1], y[1:]], layout=layout)


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "none": lambda y: None,
    "text": lambda y: "text",
    "coo": lambda y: y.relu().to_sparse(),
    "csr": lambda y: y.relu().to_sparse_csr(),
    "bsr": lambda y: y.to_sparse_bsr((1, 1)),
    "nested": lambda y: nested(y, torch.strided),
    "jagged": lambda y: nested(y, torch.jagged),
    "dict of such": lambda y: {"a": y.to_sparse(), "b": None, 3: [nested(y, torch.jagged), "x"]},
    "quantized": lambda y: torch.quantize_per_tensor(y, 0.1, 0, torch.qint8),
    "complex": lambda y: torch.complex(y, -y).conj(),
    "complex32": lambda y: torch.complex(y, y).to(torch.complex32),
    "float8": lambda y: y.to(torch.float8_e4m3fn),
    "float4": lambda y: torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "bits": lambda y: torch.zeros(4, 4, dtype=torch.uint8).view(torch.bits8),
    "masked": lambda y: torch.masked.masked_tensor(y, y > 0),
    "mkldnn": lambda y: y.detach().to_mkldnn(),
    "bool": lambda y: y > 0,
    "empty": lambda y: y[:0],
}
_ODD = "the output has a layout or dtype whose values can't be compared"


class Returns(nn.Module):
    def __init__(self, what: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.act, self.what = nn.Linear(4, 4), nn.ReLU(), what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.body(x) + self.act(self.body(x)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:.*MaskedTensor", "ignore:Sparse")
@pytest.mark.parametrize("kind", OUTPUTS)
def test_no_output_is_taken_for_a_crash(kind: str) -> None:
    model = Returns(OUTPUTS[kind])
    x = torch.randn(4, 4)
    with untouched(model):
        report = check(model, x, repeat=2, split_batch=True)
    assert "HK001" not in {finding.check for finding in report.findings}
    unjudged = {item.fqn.split()[0] for item in report.skipped if item.reason == f"not judged: {_ODD}"}
    assert ("HK020" in unjudged) == (kind in ("nested", "jagged", "float4", "bits", "masked"))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_what_mixes_the_batch_is_found_in_a_sparse_output(layout: str) -> None:
    found = {f.check for f in check(Returns(lambda y: OUTPUTS[layout](y - y.mean(0))), torch.randn(4, 4)).findings}
    assert "HK020" in found
    found = {f.check for f in check(Returns(OUTPUTS[layout]), torch.randn(4, 4)).findings}
    assert "HK020" not in found


def test_gradients_of_a_nested_output_are_those_of_its_parts() -> None:
    """A random vector for each element, the same each time: gradients that are not zero, and that come again."""
    model = Returns(lambda y: nested(y, torch.jagged))
    report = check(model, torch.randn(4, 4), repeat=2)
    assert not {"HK008", "HK009", "HK025"} & {finding.check for finding in report.findings}


def test_values_that_are_compared_are_the_tensors_own() -> None:
    y = torch.randn(3, 4)
    for made in (y, y.to_sparse(), y.to_sparse_csr(), y.to_mkldnn(), y.as_subclass(type("Own", (Tensor,), {}))):
        found = plain(made)
        assert found is not None and type(found) is Tensor and torch.equal(found, y)


class Tagger(nn.Module):
    """Pads to the longest item; its LSTM sees no padding, its Linear gives padding a bias."""

    def __init__(self, pooled: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pooled, self.tokens, self.lstm = pooled, nn.Embedding(9, 4, 0), nn.LSTM(4, 6, batch_first=True)
        self.fc, self.head = nn.Linear(6, 3, bias=pooled != "without a bias"), nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2, track_running_stats=pooled != "batch statistics")

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != 0
        packed = pack_padded_sequence(self.tokens(ids), real.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        each = self.fc(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])
        if self.pooled in ("each", "by the padded length", "without a bias"):
            return each if self.pooled == "each" else self.head(each.mean(1))
        mask = real[:, : each.size(1), None]
        return self.norm(self.head((each * mask).sum(1) / mask.sum(1)))


@pytest.mark.parametrize(
    ("pooled", "place", "advice"),
    [
        ("by the padded length", "fc", "mask the padding"),
        ("without a bias", "head", "mask the padding"),
        ("batch statistics", "norm", "GroupNorm"),
        ("by its own length", None, ""),
        ("each", None, ""),
    ],
)
def test_padding_is_told_from_what_mixes_the_batch(pooled: str, place: str | None, advice: str) -> None:
    ids = torch.tensor([[1, 2, 0, 0, 0], [3, 4, 5, 6, 7], [1, 2, 3, 0, 0]])
    findings = check(Tagger(pooled), ids, select="HK020").findings
    assert [f.fqn for f in findings] == [place] * (place is not None)
    for name in ("mask the padding", "GroupNorm", "dim=0"):
        assert all((name in f.remedy) == (name == advice) for f in findings)


NET = """
import torch
from torch import nn

def odd(y):
    return {made}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.same, self.b = nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 2)
        self.weight = nn.Parameter(odd(torch.randn(4, 4)).detach())
        self.register_buffer("held", odd(torch.randn(4, 4)).detach())

    def forward(self, x):
        if x.is_nested or x.layout is not torch.strided:
            x = torch.cat(x.unbind()) if x.is_nested else x.to_dense()
        y = self.same(odd(self.a(x)))
        y = torch.cat(y.unbind()) if y.is_nested else y.to_dense()
        return self.b(y), odd(y)

batches = [odd(torch.randn(4, 4))]
"""
LAYOUTS = {
    "strided": "torch.nested.as_nested_tensor([y[:1], y[1:]])",
    "jagged": "torch.nested.as_nested_tensor([y[:1], y[1:]], layout=torch.jagged)",
    "coo": "y.relu().to_sparse()",
    "csr": "y.relu().to_sparse_csr()",
}
COMMANDS = """
shapes; inputs; activations; activations --ops; grads; grads --of outputs; grads --of outputs --ops; grads --of inputs
flow; graph; trace; check; weights; diff; diff --backward
"""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:Sparse")
@pytest.mark.parametrize("layout", ["jagged", *map(swept, ("csr", "strided", "coo"))])
def test_every_command_takes_nested_and_sparse_inputs_outputs_and_parameters(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd.py").write_text(NET.replace("{made}", LAYOUTS[layout]))
    given = {"weights": [], "diff": ["odd.py:Net", "--input", "4x4"]}
    for command in COMMANDS.replace(";", "\n").strip().split("\n"):
        name, *options = command.split()
        code = main([name, *options, "odd.py:Net", *given.get(name, ["--data", "odd.py:batches"])])
        said = capsys.readouterr()
        assert code == 0 or (name == "check" and code == 1 and "HK001" not in said.out), (command, said)
        assert name != "diff" or "Identical" in said.out, said
        assert name != "check" or "an input is nested or sparse" in said.out, said
