"""Writes the tensors of a run to a dump's folder while the model runs, a file for each."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hookcli.errors import UsageError
from hookcli.table.columns import place_of
from hookcli.table.dump import INDEX, INPUTS, Dump
from hookcli.table.meta import Meta
from hookcli.table.report import Skipped
from hookcli.table.row import Row
from hookcli.tensors import tree
from hookcli.tensors.chunks import dequantized
from hookcli.tensors.files.dump_reader import Unwritable, encoded_call
from hookcli.tensors.torch_private import is_mapped
from hookcli.tensors.weak import Unchanged

_OURS = re.compile(r"(\d{6}-[\w.-]*|inputs-\d+)\.safetensors")
_LONGEST = 80  # characters of a module's name in a file's name
_PATIENCE = 1.0  # seconds between two writings of the index


class _Run(Protocol):
    """A run of a model on a batch."""

    model: nn.Module
    batch_number: int


class DumpWriter:
    """A dump under way.

    A tensor is written in the callback that sees it, so that memory does not grow; the index follows once a second.
    After a crash, also of the process, the folder holds what was seen until then. A tensor that was written before and
    has not changed since is not written again: its row names the same file. `limit` bounds the bytes of all tensors.
    """

    LEFT_OUT = "left out: the dump would be larger than --max-bytes"

    def __init__(self, folder: Path, limit: int, dump: Dump) -> None:
        self.folder = folder
        self.written = 0
        self._limit = limit
        self._dump = dump
        self._begin()

    def _begin(self) -> None:
        self._rows: dict[tuple[object, ...], Row] = {}
        self._skipped: list[Skipped] = []
        self._unchanged: Unchanged[dict[str, object]] = Unchanged()
        self._saved = 0.0
        self._number = self.written = 0

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the tensors so far, those that were left out among them."""
        return list(self._rows.values())

    def begin(self, session: _Run, args: tuple[object, ...], kwargs: Mapping[str, object], target: object) -> None:
        """Begin the run on a batch, and write its arguments; with the first batch, empty the folder."""
        with self._disk_errors():
            if session.batch_number == 0:
                self._begin()
                modules = [(fqn, tree.type_text(module)) for fqn, module in session.model.named_modules()]
                self._dump = replace(self._dump, modules=modules, tensors=(), inputs=())
                self.folder.mkdir(parents=True, exist_ok=True)
                self._write_index(complete=False)
                for path in self.folder.iterdir():
                    if _OURS.fullmatch(path.name):
                        path.unlink()
            batch = session.batch_number
            if len(self._dump.inputs) != batch:  # the inputs of a batch before are not there
                return
            tensors: dict[str, Tensor] = {}
            what = "the model's arguments" + (f" in batch {batch + 1}" if batch else "")
            try:
                call = encoded_call(args, kwargs, target, tensors)
                values = {name: dense(tensor).clone() for name, tensor in tensors.items()}  # some may share memory
            except (Unwritable, RuntimeError) as error:
                why = error if isinstance(error, Unwritable) else type(error).__name__
                self._skipped.append(Skipped("", f"{what} can't be written ({why})"))
                return
            if sum(x.numel() * x.element_size() for x in values.values()) > self._limit - self.written:
                self._skipped.append(Skipped("", f"{what}: {self.LEFT_OUT}"))
                return
            self._save(values, INPUTS.format(batch), {})
            self._dump = replace(self._dump, inputs=[*self._dump.inputs, call])

    def take(self, values: Mapping[str, object], tensor: Tensor) -> None:
        """Write a tensor, whose place is in `values`. One at the same place as an earlier one replaces it."""
        absent: dict[str, object] = {"kind": "", "fqn": "", "type": "", "batch": 0, "call": 0}
        absent |= {"pass": 0, "index": 0, "path": "", "source": ""}
        row = {name: values.get(name, otherwise) for name, otherwise in absent.items()}
        key = place_of(row)
        with self._disk_errors():
            try:
                written = self._unchanged.get(tensor, lambda x: self._saved_as(row, x))
            except (RuntimeError, TypeError, ValueError, KeyError) as error:
                shape, dtype = tree.shape_of(tensor), tree.dtype_text(tensor)
                reason = f"can't be written ({dtype}, {type(error).__name__})"
                written = {"shape": shape, "dtype": dtype, "file": None, "reason": reason}
            self._rows[key] = Row(row | written)
            if time.monotonic() - self._saved > _PATIENCE:
                self._write_index(complete=False)

    def finish(self, model: str, meta: Meta, skipped: Sequence[Skipped]) -> None:
        """Write the index of a run that has ended, by itself or by a failure: `meta["complete"]` tells."""
        self._dump = replace(self._dump, model=model, meta=meta)
        self._skipped += [item for item in skipped if item not in self._skipped]
        with self._disk_errors():
            self._write_index(complete=bool(meta.get("complete")))

    def _saved_as(self, row: Mapping[str, Any], tensor: Tensor) -> dict[str, object]:
        """Write the tensor to a file. Return the values of its row: the file's name, or why it was left out."""
        values = dense(tensor)
        described = {"shape": list(values.shape), "dtype": tree.dtype_text(values), "file": None}
        size = values.numel() * values.element_size()
        if self.written + size > self._limit:
            return described | {"reason": self.LEFT_OUT, "bytes": size}
        stem = re.sub(r"[^\w.-]+", "_", row["fqn"] or "model", flags=re.ASCII)[:_LONGEST]
        file, name = f"{self._number:06}-{stem}.safetensors", (row["fqn"] or "model") + row["path"]
        self._save({name: values}, file, {key: str(value) for key, value in row.items()})
        self._number += 1
        return described | {"file": file, "name": name, "bytes": size}

    def _save(self, tensors: dict[str, Tensor], file: str, metadata: dict[str, str]) -> None:
        from safetensors.torch import save_file

        save_file(tensors, self.folder / file, metadata)
        (self.folder / file).chmod((self.folder / INDEX).stat().st_mode)  # else nobody but the owner could read it
        self.written += sum(x.numel() * x.element_size() for x in tensors.values())

    def _write_index(self, *, complete: bool) -> None:
        meta: Meta = {**self._dump.meta, "complete": complete}
        replace(self._dump, tensors=self.rows, skipped=self._skipped, meta=meta).write(self.folder)
        self._saved = time.monotonic()

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Turn errors of the disk into UsageErrors, which people read."""
        try:
            yield
        except Exception as error:  # safetensors raises its own class, which is imported only where it is needed
            if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
                raise
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"--dump {self.folder}: {why}; it holds the tensors until then") from error


def dense(tensor: Tensor) -> Tensor:
    """The values as a contiguous tensor on the CPU: of a sparse or quantized tensor those that it stands for.

    Raises NotImplementedError for a tensor without such values: nested, mapped, sharded, or on the meta device.
    """
    with torch.no_grad(), torch.DisableTorchFunction():
        x = tensor.detach()
        if x.is_nested or x.is_meta or is_mapped(x) or tree.is_sharded(x):
            raise NotImplementedError
        x = x.to_dense() if x.layout is not torch.strided else x
        x = dequantized(x)
        return x.resolve_conj().resolve_neg().cpu().contiguous()


def is_own(folder: Path) -> bool:
    """True if a folder holds nothing but an earlier dump, which may be replaced."""
    with suppress(OSError):
        names = [path.name for path in folder.iterdir()]
        return not names or (INDEX in names and all(n == INDEX or _OURS.fullmatch(n) for n in names))
    return False
