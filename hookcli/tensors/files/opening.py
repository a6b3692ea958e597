"""Opens files and folders of tensors by their names and contents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hookcli.errors import UsageError, shortened
from hookcli.system.files import content, is_file, is_folder, regular
from hookcli.table.formatting import counted, listed
from hookcli.tensors.files import gguf, safetensors
from hookcli.tensors.files.file_kinds import kind_of
from hookcli.tensors.files.stored import StoredTensor, TensorFile, by_number, damaged, open_unbuffered, read_some

INDEX = ".index.json"
"""The end of the names of a sharded checkpoint's indexes."""
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", ".gguf", *PICKLED)
"""Suffixes of files of tensors."""
_NAMED = 3
_OF_MODELS = (":", " -")  # in no name of a file that is missing: a source, and options


def holds_tensors(text: str) -> bool:
    """True for an argument that names a file or folder of tensors rather than a model or a report."""
    if text.endswith(".pt2"):  # a program
        return False
    if is_folder(text):
        return bool(_indexes(Path(text)) or _files(Path(text))) and not is_file(Path(text, "index.json"))
    if is_file(text):
        return text.endswith((*SUFFIXES, INDEX)) or _magic(Path(text)) in (gguf.MAGIC, b"PK\x03\x04")
    return text.endswith((*SUFFIXES, INDEX)) and not any(mark in text for mark in _OF_MODELS)


def open_tensors(text: str) -> TensorFile:
    """The tensors of a file, of the files that an index names, or of a folder. Raises UsageError if there are none.

    Of a folder: the tensors that its index names, else all in its files of one format.
    """
    path = Path(text)
    if is_folder(text):
        indexes, files = _indexes(path), _files(path)
        if len(indexes) > 1:
            raise UsageError(f"{path}: has {listed([i.name for i in indexes], _NAMED)}; name one of these files")
        if not (indexes or files):
            if error := _other(path):
                raise error
            raise UsageError(f"{path}: holds no file of tensors ({', '.join(SUFFIXES)})")
        whole = _indexed(_inner(indexes[0])) if indexes else _joined([_opened(_inner(file)) for file in files])
        return replace(whole, name=text)
    if not is_file(text):
        raise UsageError(f"{shortened(text)}: no such file")
    return replace(_indexed(path) if text.endswith(INDEX) else _opened(path), name=text)


def _opened(file: Path) -> TensorFile:
    magic = _magic(file)
    if magic == gguf.MAGIC:
        return gguf.read(file)
    if file.suffix == ".gguf":
        raise _other(file) or damaged(file, "not a GGUF file: it does not begin with the letters GGUF")
    if file.suffix == ".safetensors":
        try:
            return safetensors.read(file)
        except UsageError as error:
            raise (_other(file) or error) from error
    from hookcli.tensors.files import pytorch

    return pytorch.read(file)


def _other(file: Path) -> UsageError | None:
    """The error for a file that is of another kind than its name says; None for one of no known kind."""
    kind = kind_of(file)
    return UsageError(f"{file} is {kind}") if kind else None


def _inner(file: Path) -> Path:
    """The file, which a folder or an index names. Raises UsageError for a link out of its folder.

    The snapshots of a Hugging Face cache are links to the blobs beside them.
    """
    folder = file.parent.resolve()
    try:
        return regular(file, folder.parent.parent if folder.parent.name == "snapshots" else folder)
    except OSError as error:
        raise UsageError(f"{file}: can't be read ({error.strerror}); name the file itself") from error


def _magic(file: Path) -> bytes:
    begin = bytearray(4)
    with open_unbuffered(file) as opened:
        return bytes(begin[: read_some(opened, memoryview(begin), file)])


def _indexes(folder: Path) -> list[Path]:
    """The indexes of sharded checkpoints in a folder; only the indexes of safetensors files if it has any."""
    indexes = sorted(folder.glob(f"*{INDEX}"))
    return [file for file in indexes if file.name.endswith(f".safetensors{INDEX}")] or indexes


def _files(folder: Path) -> list[Path]:
    """The files of tensors of one format, the best known first."""
    by_suffix = (sorted(folder.glob(f"*{suffix}")) for suffix in SUFFIXES)
    return next(filter(None, by_suffix), [])


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor of a sharded checkpoint, by the tensor's name. Raises UsageError for another file."""
    try:
        files: dict[str, str] = json.loads(content(index))["weight_map"]
        for name in {*files.values()} or [""]:
            if not isinstance(name, str) or not name or Path(name).name != name:
                raise ValueError("it must name files beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(index, f"not the index of a sharded checkpoint ({error})") from error
    return files


def _indexed(index: Path) -> TensorFile:
    weight_map = _weight_map(index)
    names = dict.fromkeys(weight_map.values())
    if missing := [name for name in names if not is_file(index.with_name(name))]:
        raise UsageError(f"{index}: {counted(len(missing), 'file')} missing ({listed(missing, _NAMED)})")
    whole = _joined([_opened(_inner(index.with_name(name))) for name in names])
    held = {(tensor.name, tensor.file): tensor for tensor in whole.tensors}
    absent = [name for name, file in weight_map.items() if (name, file) not in held]
    if absent:
        raise damaged(index, f"names {counted(len(absent), 'tensor')} that the files lack ({listed(absent, _NAMED)})")
    others = len(held) - len(weight_map)
    notes = [f"{counted(others, 'tensor')} not in the index, left out"] if others else []
    tensors = sorted((held[place] for place in weight_map.items()), key=by_number)
    return TensorFile(str(index), whole.format, tensors, whole.metadata, [*whole.notes, *notes])


def _joined(files: Sequence[TensorFile]) -> TensorFile:
    """The tensors of several files, as if of one. Raises UsageError for a name that two files have."""
    first: dict[str, StoredTensor] = {}
    for tensor in (tensor for file in files for tensor in file.tensors):
        if (other := first.setdefault(tensor.name, tensor)) is not tensor:
            raise UsageError(f"{tensor.name!r} is in {other.file} and in {tensor.file}; name one of these files")
    number = f", {len(files)} files" if files[1:] else ""
    notes: Iterable[str] = dict.fromkeys(note for file in files for note in file.notes)
    metadata = {key: value for file in reversed(files) for key, value in file.metadata.items()}
    whole = [tensor for file in files for tensor in file.tensors]
    return TensorFile("", f"{files[0].format}{number}", whole, metadata, [*notes])
