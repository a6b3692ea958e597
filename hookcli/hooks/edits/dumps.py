"""The operation `from(DUMP)` of edits: the tensor that another run had at the same place, from its dump."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from hookcli.errors import UsageError, unknown
from hookcli.hooks.edits.base import Place
from hookcli.table.dump import INDEX, is_dump
from hookcli.table.names import in_words
from hookcli.table.row import Row
from hookcli.tensors.files.dump_reader import DumpReader
from hookcli.tensors.tree import dtype_text, shape_text


def from_dump(x: Tensor, dump: str, fqn: str | None = None, *, place: Place) -> Tensor:
    """Replace the tensor by that of a dump, of the same kind, call and path, there or at another `fqn`.

    The strides are those of `x`, since kernels may round otherwise with others; the gradient passed on is 0. Raises
    UsageError if the dump lacks the tensor, or has another shape or dtype there.
    """
    reader, rows = _opened(dump, _stamp(dump))
    place = place if fqn is None else place._replace(fqn="" if fqn == "(model)" else fqn)
    row = rows.get(place)
    if row is None or not row["file"]:
        what = f"{place.kind} {place.path}".rstrip() + f" of {in_words(place.fqn)}, call {place.call}"
        why = f": {row['reason']}" if row else _instead(rows, place)
        raise UsageError(f"{dump} has no {what}{why}")
    found = reader.load(row)
    if (found.shape, found.dtype) != (x.shape, x.dtype):
        has = f"{shape_text(found)} {dtype_text(found)}"
        raise UsageError(f"{dump} has {has} there, this run {shape_text(x)} {dtype_text(x)}")
    value = torch.empty_like(x, requires_grad=False)
    with torch.no_grad():
        value.copy_(found)
    return torch.where(torch.ones_like(x, dtype=torch.bool), value, x) if x.requires_grad else value


def _check(dump: str, fqn: str | None = None) -> None:
    """Raise UsageError for a folder that is no dump, and for a module that the dump lacks."""
    _, rows = _opened(dump, _stamp(dump))
    names = {place.fqn for place in rows}
    if fqn is not None and fqn not in names and not (fqn == "(model)" and "" in names):
        raise UsageError(f"{dump}: {unknown('module', fqn, sorted(filter(None, names)))}")


from_dump.check = _check  # type: ignore[attr-defined]


def _stamp(dump: str) -> tuple[int, int]:
    """What tells whether the index has changed since it was read."""
    if not is_dump(dump):
        raise UsageError(
            f"{dump} is no dump (a folder with {INDEX}); `hookcli activations MODEL --dump DIR` writes one"
        )
    stat = (Path(dump) / INDEX).stat()
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=4)
def _opened(dump: str, stamp: tuple[int, int]) -> tuple[DumpReader, dict[Place, Row]]:
    reader = DumpReader(dump)
    keys = ("kind", "fqn", "batch", "call", "pass", "path")
    return reader, {Place(*(row[key] for key in keys)): row for row in reader.dump.tensors}


def _instead(rows: dict[Place, Row], place: Place) -> str:
    """What the dump has in place of a tensor that it lacks."""
    calls = sum(other.fqn == place.fqn and other.kind == place.kind for other in rows)
    kinds = sorted({other.kind for other in rows})
    if calls:
        return f"; it has {calls} of that module"
    return f"; it has no {place.kind} of that module" if place.kind in kinds else f"; it has {', '.join(kinds)}"
