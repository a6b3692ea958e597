"""Files of tensors that are damaged, cut, or of another kind."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tensors.gguf_files import made_gguf

from hookcli.errors import UsageError
from hookcli.tensors.files.opening import holds_tensors, open_tensors
from hookcli.tensors.files.statistics import measured
from hookcli.tensors.files.stored import read_into


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
    "dtype": (safetensors_with({"a": entry(dtype=["F32"])}, b"12345678"), "impossible"),
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
    with pytest.raises(UsageError, match="holds no tensors, but an object of type dict"):
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


def test_a_file_that_gives_a_few_bytes_at_a_time(tmp_path: Path) -> None:
    class Slow(io.BytesIO):
        def readinto(self, target: Any) -> int:
            return super().readinto(memoryview(target)[:3])

    found = bytearray(10)
    read_into(Slow(b"0123456789ab"), memoryview(found), tmp_path)
    assert found == b"0123456789"
    with pytest.raises(UsageError, match="ends within a tensor"):
        read_into(Slow(b"01234567"), memoryview(found), tmp_path)
