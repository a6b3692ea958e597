"""Input from files of tensors: `.npy`, `.npz`, `.pt` and `.safetensors`."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from hookcli.errors import in_brief, shortened
from hookcli.sources.base import Arguments, Recipe
from hookcli.sources.data.base import AllInput, Batches, Data, wrong
from hookcli.system import files
from hookcli.system.memory import available_memory
from hookcli.table.formatting import listed

_NUMBERED = "arr_"  # numpy's names for arrays that were saved without any


def file_input(texts: Sequence[str]) -> Data:
    """The input that `--input-file` describes: `FILE` or `KEYWORD=FILE`, once per argument.

    Raises UsageError for a file that is missing, or of no known suffix. It is read when the input is made.
    """
    parsed = [_parsed(text) for text in texts]
    option = " ".join(f"--input-file {shortened(text)}" for text in texts)

    def read(recipe: Recipe, size: int | None) -> Batches:
        if size is not None:
            raise wrong("batch-size", "--input-file has a batch already; leave it out")
        typed = any(keyword for keyword, _ in parsed)
        return Batches([AllInput(_together(parsed), typed=typed)], total=1)

    return Data(option, read)


def _parsed(text: str) -> tuple[str, str]:
    """The keyword ("" for none) and the file of one `--input-file`."""
    keyword, separator, file = text.partition("=")
    if not separator or not keyword.isidentifier() or files.is_file(text):
        keyword, file = "", text
    if not files.is_file(file):
        folder = " (it is a folder)" if files.is_folder(file) else ""
        raise wrong("input-file", f"no file {shortened(file)!r}{folder}")
    if Path(file).suffix.lower() not in _KINDS:
        raise wrong("input-file", f"{shortened(file)}: give a file of {listed(list(_KINDS), len(_KINDS))}")
    return keyword, file


def _together(parsed: Sequence[tuple[str, str]]) -> Arguments:
    """The tensors of all files, in order or by keyword."""
    positional: list[object] = []
    keywords: dict[str, object] = {}
    for keyword, file in parsed:
        values = _read(file)
        new = {keyword: values} if keyword else dict(values) if isinstance(values, Mapping) else {}
        if twice := new.keys() & keywords.keys():
            raise wrong("input-file", f"{file}: {sorted(twice)[0]!r} is given twice")
        keywords |= new
        if not new:
            positional += values if isinstance(values, (tuple, list)) else [values]
    if keywords and positional:
        raise wrong("input-file", f"name all arguments or none, as in --input-file {next(iter(keywords))}=FILE")
    return keywords or tuple(positional)


def _read(file: str) -> object:
    """Reads a file's tensor or array, or its tuple or mapping of them. Raises UsageError for another file."""
    suffix = Path(file).suffix.lower()
    try:
        if suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(files.regular(file))
        if suffix == ".npz":
            import numpy as np

            with files.opened(file) as opened, np.load(opened, allow_pickle=False) as archive:
                if sum(item.file_size for item in archive.zip.infolist()) > (available_memory() or math.inf):
                    raise OSError(errno.EFBIG, "its arrays would take more than the memory that is available")
                arrays = {name: archive[name] for name in archive.files}
            return tuple(arrays.values()) if all(name.startswith(_NUMBERED) for name in arrays) else arrays
        if suffix == ".npy":
            import numpy as np

            with files.opened(file) as array:
                return np.load(array, allow_pickle=False)
        return torch.load(files.regular(file), map_location="cpu", weights_only=True)
    except ImportError as error:
        raise wrong(
            "input-file", f"{file}: reading it needs safetensors: pip install 'hookcli[safetensors]'"
        ) from error
    except Exception as error:
        why = f" ({in_brief(error)})" if isinstance(error, OSError) else ""  # others advise to trust the file
        raise wrong("input-file", f"{file}: is not {_KINDS[suffix]}{why}") from error


_KINDS = {
    ".npy": "an array that numpy saved without pickle",
    ".npz": "arrays that numpy saved without pickle",
    **dict.fromkeys((".pt", ".pth", ".bin"), "a tensor, or a tuple or dict of tensors, that torch.save wrote"),
    ".safetensors": "a safetensors file",
}
