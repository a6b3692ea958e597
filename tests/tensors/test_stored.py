"""Tensors in files: held against PyTorch, and against the libraries of the formats."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tensors.gguf_files import made_gguf
from torch import Tensor

from hookcli.errors import UsageError
from hookcli.table import TensorStats
from hookcli.table.stats import STATS_KEYS, agree
from hookcli.tensors import stats as tensor_stats
from hookcli.tensors.files import gguf as gguf_file
from hookcli.tensors.files.opening import open_tensors
from hookcli.tensors.files.pytorch import stored
from hookcli.tensors.files.statistics import measured
from hookcli.tensors.files.stored import CODINGS, StoredTensor, table

TABLES = [name for name, coding in CODINGS.items() if coding.table and name != "bool"]


def reference(x: Tensor) -> TensorStats:
    (found,) = tensor_stats.resolve([tensor_stats.measure(x, hist=True)])
    return found


def assert_alike(found: TensorStats, expected: TensorStats, rel_tol: float = 1e-6) -> None:
    for key in STATS_KEYS:
        assert agree(getattr(found, key), getattr(expected, key), rel_tol), key
    assert found.hist == expected.hist


def read(tensor: StoredTensor) -> np.ndarray[Any, Any]:
    return np.concatenate([*tensor.values(), np.empty(0)]).reshape(tensor.shape)


@pytest.mark.parametrize("name", TABLES)
def test_every_code_has_pytorchs_value(name: str) -> None:
    dtype = getattr(torch, name)
    codes = torch.arange(len(table(name))).to({1: torch.uint8, 2: torch.uint16}[dtype.itemsize])
    assert np.array_equal(table(name), codes.view(dtype).double().numpy(), equal_nan=True)


@pytest.mark.parametrize("name", CODINGS)
def test_statistics_are_those_of_the_tensor(name: str) -> None:
    dtype = getattr(torch, name)
    torch.manual_seed(0)
    x = torch.randn(2, 1003, dtype=torch.complex128 if dtype.is_complex else torch.float64) * 50
    x = x.abs() if not (dtype.is_signed or dtype.is_complex) else x
    x = x.to(dtype)
    if dtype.is_floating_point and not math.isfinite(torch.tensor(math.inf).to(dtype).double()):
        x.view(-1)[:5] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0]).to(dtype)
    assert_alike(measured(stored("x", x)), reference(x))
    assert_alike(measured(stored("x", x.t())), reference(x))


@pytest.mark.parametrize("scale", [1e-310, 1e-150, 1e160, 1e300])
def test_squares_beyond_float64(scale: float) -> None:
    x = torch.randn(1000, dtype=torch.float64) * scale
    assert_alike(measured(stored("x", x)), reference(x), 1e-12)


def test_blocks_merge_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.tensors.files.stored.BLOCK", 7)
    torch.manual_seed(0)  # a mean near 0 is compared with itself
    x = torch.randn(3000)
    monkeypatch.setattr(StoredTensor.values, "__defaults__", (7,))
    assert_alike(measured(stored("x", x)), reference(x))
    assert str(measured(stored("x", torch.empty(0)))) == str(reference(torch.empty(0)))  # NaN is not equal to itself


@pytest.mark.parametrize(
    "x",
    [
        torch.quantize_per_tensor(torch.randn(30), 0.1, 3, torch.qint8),
        torch.eye(5).to_sparse(),
        torch.randn(4, 6, dtype=torch.complex64).conj(),
        torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.tensor(3.5),
    ],
)
def test_other_tensors_of_pytorch(x: Tensor) -> None:
    found = stored("x", x)
    expected = x.dequantize() if x.is_quantized else x.to_dense()
    expected = expected.to(torch.complex128).abs() if x.is_complex() else expected
    assert np.allclose(read(found), expected.double().numpy(), rtol=1e-14, atol=0)
    assert found.shape == tuple(x.shape)


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.uint8]
    held = {f"layers.{i}.weight": (torch.randn(6, 5) * 3).abs().to(dtype) for i, dtype in enumerate(dtypes)}
    return held | {f"layers.{i}.weight": torch.randn(3) for i in (10, 9)} | {"scalar": torch.tensor(2.0)}


def test_safetensors(state: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file(state, file, {"made": "by a test"})
    found = open_tensors(str(file))
    assert found.metadata == {"made": "by a test"} and [t.name for t in found.tensors] == [
        *(f"layers.{i}.weight" for i in (*range(7), 9, 10)),
        "scalar",
    ]
    with safe_open(file, "pt") as library:
        for tensor in found.tensors:
            x = library.get_tensor(tensor.name)
            assert (tensor.shape, tensor.nbytes) == (tuple(x.shape), x.nbytes)
            assert f"torch.{tensor.dtype}" == str(x.dtype)
            assert np.array_equal(read(tensor), x.double().numpy())


def test_checkpoints(state: dict[str, Tensor], tmp_path: Path) -> None:
    linear = torch.nn.Linear(4, 3)
    tied = {"a": linear.weight.detach(), "b": linear.weight.detach(), "odd": linear.weight.detach()[0]}
    plain = {name: x for name, x in state.items() if x.dtype is not torch.float8_e4m3fn}  # the old format has none
    for content, names, note in (
        (plain, [*plain], False),
        ({"epoch": 3, "state_dict": tied, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}, [*tied], True),
        ({"best": {"w": [torch.ones(2), torch.zeros(2)]}}, ["best.w.0", "best.w.1"], False),
        (torch.ones(3), ["tensor"], False),
    ):
        for zipped in (True, False):
            file = tmp_path / "a.pt"
            torch.save(content, file, _use_new_zipfile_serialization=zipped)
            found = open_tensors(str(file))
            assert [tensor.name for tensor in found.tensors] == names
            assert bool(found.notes) == note
    torch.save({"state_dict": tied}, file)
    assert [tensor.tied for tensor in open_tensors(str(file)).tensors] == ["", "a", ""]


def test_gguf(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    values = made_gguf(file, ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "TQ1_0"))
    found = open_tensors(str(file))
    assert [tensor.name for tensor in found.tensors] == [*values]
    assert (found.metadata["general.name"], found.metadata["tokenizer.ggml.tokens"]) == ("tiny", "3 items")
    for tensor, other in zip(found.tensors, gguf.GGUFReader(file).tensors, strict=True):
        assert (tensor.name, tensor.nbytes) == (other.name, other.n_bytes)
        assert tensor.shape == tuple(reversed(other.shape.tolist())) == values[tensor.name].shape
        assert np.array_equal(read(tensor), values[tensor.name].astype(np.float64))
        assert np.array_equal(np.concatenate([*tensor.rows()]), values[tensor.name].astype(np.float64))


def test_sizes_of_quantized_types_are_the_librarys() -> None:
    sizes = {kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert all(sizes[number] == size for number, size in gguf_file._BLOCKS.items())
    assert sizes.keys() == gguf_file._BLOCKS.keys() | gguf_file._PLAIN.keys()


def test_values_of_quantized_types_need_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_gguf(tmp_path / "a.gguf", ("Q8_0", "F32"))
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    first, second = open_tensors(str(tmp_path / "a.gguf")).tensors
    assert "pip install 'hookcli[gguf]'" in first.unreadable and not second.unreadable


def test_folders(state: dict[str, Tensor], tmp_path: Path) -> None:
    names = list(state)
    parts = {"model-00001-of-00002.safetensors": names[:4], "model-00002-of-00002.safetensors": names[4:]}
    for file, some in parts.items():
        save_file({name: state[name] for name in some}, tmp_path / file)
    assert {tensor.name for tensor in open_tensors(str(tmp_path)).tensors} == set(names)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, some in parts.items() for name in some}}))
    for given in (tmp_path, index):
        found = open_tensors(str(given))
        assert [tensor.name for tensor in found.tensors] == [*names[:7], names[8], names[7], "scalar"]
        assert found.format == "safetensors, 2 files"
    for wrong in ({names[0]: "../a.safetensors"}, {names[0]: ""}, {}):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(UsageError, match="it must name files beside it"):
            open_tensors(str(tmp_path))
    index.write_text(json.dumps({"weight_map": {names[0]: "model-00003.safetensors", "x": "model-00004.safetensors"}}))
    with pytest.raises(UsageError, match=r"2 files missing \(model-00003.safetensors, model-00004.safetensors\)"):
        open_tensors(str(tmp_path))
    index.write_text(json.dumps({"weight_map": {"absent": next(iter(parts))}}))
    with pytest.raises(UsageError, match=r"names 1 tensor that the files lack \(absent\)"):
        open_tensors(str(tmp_path))
    index.unlink()
    save_file({names[0]: torch.ones(2)}, tmp_path / "z.safetensors")
    with pytest.raises(UsageError, match="name one of these files"):
        open_tensors(str(tmp_path))
