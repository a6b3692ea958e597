"""Weights of a class that wraps quantized ones, as torchao's do: they count as the values that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CODE = """
import torch
from torch import nn

class Int8(torch.Tensor):
    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype)

    def __init__(self, data, scale):
        self.data8, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data8", "scale"], None

    def dequantize(self):
        return self.data8.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear:
            x, weight, bias = args
            return function(x, weight.dequantize(), bias)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten.detach.default:
            return Int8(args[0].data8, args[0].scale)
        raise NotImplementedError(operator)

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8))

def quantized():
    model = net()
    weight = model[0].weight.detach()
    scale = weight.abs().amax(1, keepdim=True) / 127
    data = (weight / scale).round().to(torch.int8)
    model[0].weight = nn.Parameter(Int8(data, scale), requires_grad=False)
    return model
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "q.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(CODE, names)
    return names


def test_a_model_and_its_quantized_one(cli: Any, made: dict[str, Any]) -> None:
    """The weight's error is that of its dequantized values; it takes a byte for each and a scale for each row."""
    from json import loads

    ran = cli("diff", "q.py:net", "q.py:quantized", "-i", "4x16", "--format", "json")
    found = loads(ran.out)["reports"][0]
    weight, own = made["net"]()[0].weight.double(), made["quantized"]()[0].weight.dequantize().double()
    (row,) = [row for row in found["rows"] if row["fqn"] == "0.weight"]
    assert ran.code == 1 and not found["skipped"]
    assert row["rel_l2"] == pytest.approx(((weight - own).norm() / weight.norm()).item(), rel=1e-6)
    shown = loads(cli("weights", "q.py:quantized", "--format", "json").out)["reports"][0]["rows"]
    assert shown[0]["bytes"] == 16 * 8 + 8 * 4 and shown[0]["l2"] == pytest.approx(own.norm().item())
