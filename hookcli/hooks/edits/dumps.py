"""The operation `from(DUMP)` of edits: the tensor that another run had at the same place, from its dump."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hookcli.errors import UsageError
from hookcli.table.names import in_words
from hookcli.tensors.files.dump_reader import DumpReader
from hookcli.tensors.tree import dtype_text, shape_text


def from_dump(x: Tensor, dump: str, fqn: str | None = None, *, place: Mapping[str, Any]) -> Tensor:
    """Replace the tensor by that of a dump, of the same kind, call and path, there or at another `fqn`.

    The strides are those of `x`, since kernels may round otherwise with others; the gradient passed on is 0. Raises
    UsageError if the dump lacks the tensor, or has another shape or dtype there.
    """
    reader, name = DumpReader(dump), place["fqn"] if fqn is None else fqn.replace("(model)", "")
    wanted = {**place, "fqn": name}
    rows = [row for row in reader.dump.tensors if row.fqn == name]
    row = next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)
    if row is None or not row["file"]:
        has = ", ".join(sorted({row["kind"] for row in rows})) or "nothing"
        what = f"{place['kind']} {place['path']}".strip() + f" of {in_words(name)}, call {place['call']}"
        raise UsageError(f"{dump} has no {what}: {row['reason'] if row else f'it has {has} there'}")
    found = reader.load(row)
    if (found.shape, found.dtype) != (x.shape, x.dtype):
        has = f"{shape_text(found)} {dtype_text(found)}"
        raise UsageError(f"{dump} has {has} there, this run {shape_text(x)} {dtype_text(x)}")
    value = torch.empty_like(x, requires_grad=False).copy_(found)
    return torch.where(torch.ones_like(x, dtype=torch.bool), value, x) if x.requires_grad else value
