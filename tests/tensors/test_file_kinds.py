"""Files that are not checkpoints are named as what they are; what is pickled beside a state dict is not run."""

from __future__ import annotations

import argparse
import builtins
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hookcli.errors import UsageError
from hookcli.tensors.files.pytorch import load

STATE = nn.Linear(2, 2).state_dict()


def _zip(*names: str) -> Callable[[str], None]:
    def write(file: str) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")

    return write


def _bytes(content: bytes) -> Callable[[str], object]:
    return lambda file: Path(file).write_bytes(content)


def _folder(*names: str) -> Callable[[str], None]:
    def write(file: str) -> None:
        Path(file).mkdir()
        for name in names:
            Path(file, name).touch()

    return write


KINDS: dict[str, tuple[str, Callable[[str], object], str]] = {
    "TorchScript": ("a.pt", _zip("a/data.pkl", "a/constants.pkl", "a/code/x.py"), "a TorchScript archive"),
    "TorchScript without a suffix": ("a", _zip("a/data.pkl", "a/constants.pkl"), "a TorchScript archive"),
    "ONNX": ("a.onnx", _bytes(b"\x08\x0a\x12\x07pytorch"), "an ONNX model"),
    "ONNX under another name": ("a.bin", _bytes(b"\x08\x0a\x12\x07pytorch"), "an ONNX model"),
    "package": (
        "a.pt",
        _zip("a/.data/extern_modules", "a/model/model.pkl"),
        "a torch.package: if you trust its origin, give package:",
    ),
    "program": ("a.pt", _zip("a/models/model.json", "a/archive_format"), "an exported program"),
    "TensorFlow Lite": ("a.bin", _bytes(b"\x1c\0\0\0TFL3\x14"), "a model of TensorFlow Lite"),
    "Keras": ("a.pt", _zip("config.json", "model.weights.h5"), "a model of Keras"),
    "HDF5": ("a.bin", _bytes(b"\x89HDF\r\n\x1a\n"), "an HDF5 file"),
    "Git LFS": ("a.safetensors", _bytes(b"version https://git-lfs.github.com/spec/v1\n"), "a pointer of Git LFS"),
    "page": ("a.ckpt", _bytes(b"<!DOCTYPE html><html>"), "a web page"),
    "gzip": ("a.pt", _bytes(b"\x1f\x8b\x08"), "compressed by gzip"),
    "GGUF": ("a.pt", _bytes(b"GGUG"), ""),
    "safetensors": ("a.pt", lambda file: save_file(STATE, file), "a safetensors file: rename it"),
    "torch.save": ("a.safetensors", lambda file: torch.save(STATE, file), "a file of torch.save: rename it"),
    "npz": ("a.pt", _zip("arr_0.npy", "arr_1.npy"), "arrays of NumPy (.npz)"),
    "zip": ("a.pt", _zip("readme.txt"), "a zip archive that torch.save did not write"),
    "SavedModel": ("a", _folder("saved_model.pb"), "a SavedModel of TensorFlow"),
    "distributed": ("a", _folder(".metadata", "__0_0.distcp"), "a distributed checkpoint"),
}


@pytest.mark.parametrize("kind", [*KINDS])
def test_other_files_are_named_as_what_they_are(net: Path, cli: Callable[..., Any], kind: str) -> None:
    file, write, said = KINDS[kind]
    if not said:  # one letter is wrong
        said = "was not written by torch.save, or is damaged"
    write(file)
    commands = [("weights", file), ("activations", "net.py:Net", "-i", "2x3x4x4", "--weights", f"./{file}")]
    for argv in (*commands, ("shapes", file)) if "damaged" not in said else commands:
        ran = cli(*argv)
        assert ran.code == 2 and said in ran.err and "arning" not in ran.err, ran.err


class _Calls:
    """An object whose pickle is a call."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


class _Custom:
    """An object with state, of a class that a checkpoint's reader lacks."""

    made = 0

    def __new__(cls) -> _Custom:
        cls.made += 1
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        raise AssertionError("code of the file's class ran")

    def __getstate__(self) -> dict[str, object]:
        return {"lr": 0.1}


@pytest.mark.parametrize(
    "object_",
    [
        _Calls(subprocess.check_call, ["touch", "ran"]),
        _Calls(builtins.eval, "open('ran', 'w')"),
        _Calls(getattr, "x", "upper"),
        _Calls(argparse.Namespace),
        nn.Linear(2, 2),
    ],
)
def test_a_call_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_: object) -> None:
    monkeypatch.chdir(tmp_path)
    for beside in (object_, [object_], {"x": object_}):
        torch.save({"state_dict": STATE, "beside": beside}, "a.pt")
        with pytest.raises(UsageError, match=r"a\.pt: refused, since loading it could run code"):
            load(Path("a.pt"))
    assert not Path("ran").exists()


def test_objects_beside_are_not_made(tmp_path: Path) -> None:
    torch.save({"state_dict": STATE, "a": _Custom(), "b": argparse.Namespace(lr=1)}, tmp_path / "a.pt")
    made, allowed = _Custom.made, {*torch.serialization.get_safe_globals()}
    whole: Any = load(tmp_path / "a.pt")
    assert _Custom.made == made and whole["a"].attributes == {"lr": 0.1}
    assert {*torch.serialization.get_safe_globals()} == allowed
    assert all(torch.equal(whole["state_dict"][name], STATE[name]) for name in STATE)
