"""The operation `from(DUMP)` of edits: the tensor that another run had at the same place, from its dump."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookcli.errors import UsageError
from hookcli.system.files import is_file
from hookcli.table.dump import INDEX
from hookcli.table.formatting import listed
from hookcli.table.names import in_words
from hookcli.tensors.files.dump_reader import DumpReader
from hookcli.tensors.tree import dtype_text, shape_text


def from_dump(x: Tensor, dump: str, fqn: str | None = None, *, place: Mapping[str, Any]) -> Tensor:
    """Replace the tensor by the dump's tensor of the same kind, call and path, there or at another `fqn`.

    The strides of `x` are kept, since kernels may round otherwise with others; the gradient passed on is 0. Raises
    UsageError if the dump lacks the tensor, or has another shape or dtype there.
    """
    index, name = Path(dump) / INDEX, place["fqn"] if fqn is None else fqn.replace("(model)", "")
    reader, rows = _read(dump, index.stat().st_mtime_ns if is_file(index) else 0)
    row = rows.get((name, _words(place)))
    if row is None or not row["file"]:
        there = listed([words for owner, words in rows if owner == name], between="; ")
        why = row["reason"] if row else f"it has {there or 'nothing'} there"
        raise UsageError(f"{dump} has no {_words(place, f' of {in_words(name)}')}: {why}")
    loaded = reader.load(row)
    if (has := f"{shape_text(loaded)} {dtype_text(loaded)}") != (ours := f"{shape_text(x)} {dtype_text(x)}"):
        raise UsageError(f"{dump} has {has} there, this run {ours}")
    value = torch.empty_like(x, requires_grad=False).copy_(loaded)
    return torch.where(torch.ones_like(x, dtype=torch.bool), value, x) if x.requires_grad else value


@lru_cache(maxsize=2)
def _read(dump: str, changed: int) -> tuple[DumpReader, dict[tuple[str, str], Any]]:
    """A dump, and its rows by module and place; each module asks. `changed`: the time of its index."""
    reader = DumpReader(dump)
    return reader, {(row.fqn, _words(row)): row for row in reader.dump.tensors}


def _words(place: Any, of: str = "") -> str:
    """The place of a tensor in its module: output [0], call 1."""
    later = (f", {key} {place[key]}" for key in ("call", "batch", "pass") if place[key])
    return f"{place['kind']} {place['path']}".strip() + of + "".join(later)
