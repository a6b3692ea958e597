"""Says what a file or folder is that holds no tensors that hookcli reads, and what can be done with it.

The first bytes or the names of members tell; nothing is unpacked or run.
"""

from __future__ import annotations

import re
import zipfile
from contextlib import suppress
from pathlib import Path

from hookcli.registry.capability import hint
from hookcli.system.escaping import shell_path
from hookcli.system.files import is_file, is_folder, opened

_BEGIN = 64  # bytes that tell a format
_SAVE = "save model.state_dict() of the PyTorch model instead"
_UNPACK = "unpack it first"
_PAGE = "a web page, not a model: the download failed"
_STARTS = (  # where the bytes lie, in lower case, and what they begin
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the file itself: `git lfs pull` fetches it"),
    (0, b"\x89hdf\r\n\x1a\n", "an HDF5 file, as Keras writes them: save its arrays as .safetensors or .npz"),
    (0, b"\x93numpy", "an array of NumPy: --input-file takes it as input"),
    (0, b"gguf", "a GGUF file: rename it to end in .gguf"),
    (0, b"\x1f\x8b", f"compressed by gzip: {_UNPACK}"),
    (0, b"bzh", f"compressed by bzip2: {_UNPACK}"),
    (0, b"\xfd7zxz\x00", f"compressed by xz: {_UNPACK}"),
    (0, b"(\xb5/\xfd", f"compressed by Zstandard: {_UNPACK}"),
    (0, b"<!doctype html", _PAGE),
    (0, b"<html", _PAGE),
    (4, b"tfl3", f"a model of TensorFlow Lite: {_SAVE}"),
    (4, b"et1", f"a program of ExecuTorch: {_SAVE}"),
)
_MODULE_BEGIN = 4096  # bytes of a pickle
_MODULE = re.compile(rb"\x80.c[\w.]+\n([A-Za-z_][\w.]*)\n", re.DOTALL)  # an object whose class comes first
_OWN = (".safetensors", ".gguf")
CONSTANTS = "constants.pkl"
"""The member of an archive that torch.jit.save alone writes."""
_IR_VERSIONS = range(1, 32)  # of ONNX; the next field is one of these
_ONNX_FIELDS = {number << 3 | 2 for number in (2, 3, 4, 6, 7, 8, 14, 20, 25)} | {5 << 3}


def kind_of(path: str | Path) -> str:
    """What a file or folder is, and what to do: "a TorchScript archive: ..."; "" for one of no such kind."""
    path = Path(path)
    if is_file(path / ".metadata") and any(path.glob("*.distcp")):
        convert = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
        return f"a distributed checkpoint: `{convert} {shell_path(path)} FILE.pt` converts it"
    if is_folder(path):
        return f"a SavedModel of TensorFlow: {_SAVE}" if is_file(path / "saved_model.pb") else ""
    begin = b""
    with suppress(OSError), opened(path) as file:
        begin = file.read(_BEGIN)
    if begin[:2] == b"PK":
        return _of_archive(path)
    if onnx := _of_onnx(path, begin):
        return onnx
    if begin[8:10] == b'{"' and int.from_bytes(begin[:8], "little") < path.stat().st_size:
        return "" if path.suffix in _OWN else "a safetensors file: rename it to end in .safetensors"
    kind = next((kind for at, word, kind in _STARTS if begin[at:].lower().startswith(word)), "")
    return "" if path.suffix in _OWN and kind.endswith(path.suffix) else kind


def _of_onnx(path: Path, begin: bytes) -> str:
    """The kind of an ONNX model; "" for a file of another kind.

    The beginning of ONNX's ModelProto is the version of its format, then another of its fields.
    """
    fields = len(begin) > 2 and begin[0] == 1 << 3 and begin[1] in _IR_VERSIONS and begin[2] in _ONNX_FIELDS
    if not fields and path.suffix != ".onnx":
        return ""
    rename = "" if path.suffix == ".onnx" else "rename it to end in .onnx: "
    return f"an ONNX model: {rename}`hookcli diff MODEL {shell_path(path)}` compares a PyTorch model with it"


def _of_archive(path: Path) -> str:
    """The kind of a zip file; "" for one that torch.save wrote."""
    names: list[str] = []
    with suppress(Exception), opened(path) as file, zipfile.ZipFile(file) as archive:  # zipfile fails in many ways
        names = archive.namelist()
    if not names:
        return ""
    inner = {name.partition("/")[2] for name in names}
    if CONSTANTS in inner:
        run = f"write a function that returns torch.jit.load({str(path)!r}), and give file.py:function as the model"
        shown = hint("tensors at rest").format(shell_path(path))
        return f"a TorchScript archive (torch.jit.save wrote it): {shown}{run}"
    if ".data/extern_modules" in inner:
        spec = f"package:{shell_path(path)} --arg trust=true"
        return f"a torch.package: if you trust its origin, give {spec} as the model"
    if "data.pkl" in inner:
        return of_torch_save(path)
    every = inner.union(names)
    if "serialized_exported_program.json" in every or any(name.startswith("models/") for name in every):
        advice = "rename it to end in .pt2, and give it as the model"
        return "" if path.suffix == ".pt2" else f"an exported program (torch.export.save wrote it): {advice}"
    if "model.weights.h5" in names:
        return "a model of Keras: save its arrays as .safetensors or .npz"
    if "MAR-INF/MANIFEST.json" in names:
        return f"an archive of TorchServe: {_UNPACK}"
    if all(name.endswith(".npy") for name in names):
        return "arrays of NumPy (.npz): --input-file takes them as input"
    return f"a zip archive that torch.save did not write: {_UNPACK}"


def of_torch_save(path: Path) -> str:
    """The kind of a file of torch.save: that it holds a whole module, or that its name is another format's; else ""."""
    begin = b""
    with suppress(Exception), opened(path) as file, zipfile.ZipFile(file) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(pickled) as member:
            begin = member.read(_MODULE_BEGIN)
    module = _MODULE.match(begin)
    if module and b"_parameters" in begin:
        run = f"write a function that returns torch.load({str(path)!r}, weights_only=False)"
        kind = f"a whole model ({module[1].decode()}) that torch.save pickled, which could run code"
        return f"{kind}: if you trust its origin, {run}, and give file.py:function as the model"
    return "a file of torch.save: rename it to end in .pt" if path.suffix in _OWN else ""
