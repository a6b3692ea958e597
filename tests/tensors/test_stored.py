"""Tensors in files: held against PyTorch, and against the libraries of the formats."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from hookcli.errors import UsageError
from hookcli.report import TensorStats
from hookcli.report.stats import STATS_KEYS, agree
from hookcli.tensors import stats as tensor_stats
from hookcli.tensors.files import gguf as gguf_file
from hookcli.tensors.files.codings import CODINGS, table
from hookcli.tensors.files.in_memory import stored
from hookcli.tensors.files.opening import holds_tensors, open_tensors
from hookcli.tensors.files.spectrum import low_rank, spectrum
from hookcli.tensors.files.statistics import measured
from hookcli.tensors.files.stored import StoredTensor

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
    x = torch.randn(3000)
    monkeypatch.setattr(StoredTensor.values, "__defaults__", (7,))
    assert_alike(measured(stored("x", x)), reference(x))
    assert measured(stored("x", torch.empty(0))) == reference(torch.empty(0))


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


def made_gguf(file: Path, types: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Write a GGUF file with a tensor of each type; its values, dequantized by the library."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_token_list(["a", "bcd", "é"])
    writer.add_array("numbers", [1, 2, 3])
    values = {}
    for number, name in enumerate(types):
        kind = gguf.GGMLQuantizationType[name]
        x = np.random.default_rng(number).standard_normal((3, 512)).astype(np.float32)
        raw = gguf.quants.quantize(x, kind)
        writer.add_tensor(f"blk.{number}.{name}", raw, raw_dtype=kind)
        values[f"blk.{number}.{name}"] = gguf.quants.dequantize(raw, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


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


def safetensors_with(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: Any = (2,), dtype: Any = "F32", offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DAMAGED = {
    "empty": (b"", "too short"),
    "length": (b"\xff" * 16, "not a safetensors file"),
    "json": (safetensors_with(b"{nonsense"), "not JSON"),
    "deep": (safetensors_with(b"[" * 100_000), "not JSON"),
    "list": (safetensors_with([1]), "not a JSON object"),
    "entry": (safetensors_with({"a": {"dtype": "F32"}}), "incomplete"),
    "no dict": (safetensors_with({"a": 3}), "incomplete"),
    "cut": (safetensors_with({"a": entry()}, b"1234"), "beyond the end"),
    "size": (safetensors_with({"a": entry(offsets=(0, 4))}, b"1234"), "do not fit"),
    "negative": (safetensors_with({"a": entry(shape=[-2])}, b"12345678"), "impossible"),
    "huge": (safetensors_with({"a": entry(shape=[10**30])}, b"12345678"), "do not fit"),
    "text": (safetensors_with({"a": entry(shape="2")}, b"12345678"), "impossible"),
    "overlap": (safetensors_with({"a": entry(), "b": entry(offsets=(4, 12))}, b"0" * 12), "overlaps"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_safetensors(name: str, tmp_path: Path) -> None:
    content, said = DAMAGED[name]
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        open_tensors(str(file))


def test_damaged_gguf(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    made_gguf(file, ("F32", "Q8_0"))
    whole = file.read_bytes()
    for size in (5, 20, 60, 200, 400, len(whole) - 40):
        file.write_bytes(whole[:size])
        with pytest.raises(UsageError, match="damaged"):
            open_tensors(str(file))
    for at in range(4, 400, 5):
        file.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        with suppress(UsageError):  # nothing else
            open_tensors(str(file))


def test_other_files(tmp_path: Path) -> None:
    for name, content, said in (
        ("a.pt", b"nonsense", "not written by torch.save"),
        ("a.pt", b"PK\x03\x04nonsense", "not written by torch.save"),
        ("a.gguf", b"nonsense", "not a GGUF file"),
        ("a.index.json", b"[]", "not the index"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=said):
            open_tensors(str(tmp_path / name))
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(UsageError, match="holds a dict without tensors"):
        open_tensors(str(tmp_path / "a.pt"))
    torch.save(torch.nn.Linear(2, 2), tmp_path / "a.pt")
    with pytest.raises(UsageError, match="could run code"):
        open_tensors(str(tmp_path / "a.pt"))
    assert not holds_tensors(str(tmp_path / "none")) and holds_tensors("none.safetensors")
    assert not any(map(holds_tensors, ("net.py:Net --weights none.pt", "package:none.pt", "net.py")))


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(1000)}, file)
    (tensor,) = open_tensors(str(file)).tensors
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(UsageError, match="ends within a tensor"):
        measured(tensor)


MATRICES: dict[str, Callable[[], Tensor]] = {
    "random": lambda: torch.randn(90, 70),
    "wide": lambda: torch.randn(20, 400),
    "convolution": lambda: torch.randn(16, 8, 3, 3),
    "rank 1": lambda: torch.outer(torch.randn(30), torch.randn(40)),
    "diagonal": lambda: torch.diag(torch.arange(1, 60).float()),
    "one row": lambda: torch.randn(1, 50),
    "bfloat16": lambda: torch.randn(64, 64).bfloat16(),
    "huge": lambda: torch.randn(30, 40) * 1e37,
    "tiny": lambda: torch.randn(30, 40, dtype=torch.float64) * 1e-100,
}


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", MATRICES)
def test_spectra_against_svd(name: str, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookcli.tensors.files.spectrum._HELD", 1 << 26 if held else 0)
    monkeypatch.setattr("hookcli.tensors.files.stored.BLOCK", 500)  # several blocks of rows
    torch.manual_seed(0)
    x = MATRICES[name]()
    tensor = stored("x", x)
    found = spectrum(tensor.rows, tensor.columns)
    values = torch.linalg.svdvals(x.flatten(1).double())
    assert found is not None and found.converged
    assert found.norm == pytest.approx(values[0].item(), rel=5e-4)
    assert found.stable_rank == pytest.approx(((values**2).sum() / values[0] ** 2).item(), rel=1e-3)


def test_a_matrix_without_singular_values() -> None:
    zero = stored("x", torch.zeros(3, 4))
    found = spectrum(zero.rows, zero.columns)
    assert found is not None and found.norm == 0 and math.isnan(found.stable_rank)
    bad = stored("x", torch.tensor([[1.0, math.nan]]))
    assert spectrum(bad.rows, bad.columns) is None


@pytest.mark.parametrize(("rank", "found"), [(1, 1), (8, 8), (64, 64), (70, None)])
def test_rank_of_a_change(rank: int, found: int | None) -> None:
    torch.manual_seed(0)
    change = stored("x", torch.randn(300, rank) @ torch.randn(rank, 280))
    energy = sum(float((block**2).sum()) for block in change.values())
    low = low_rank(change.rows, change.columns, energy, rounding=0.0, most=75)
    assert (low and low.rank) == found
    assert low is None or low.share == pytest.approx(1.0, abs=1e-5)
