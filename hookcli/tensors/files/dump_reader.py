"""Reads the tensors of a dump, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from hookcli.errors import UsageError
from hookcli.system.files import regular
from hookcli.table.dump import INPUTS, Dump, read_dump
from hookcli.table.row import Row
from hookcli.tensors.files.arguments import decoded_call


class DumpReader:
    """A dump and its tensors, by the index in its folder or by another. Raises UsageError where one can't be read."""

    def __init__(self, folder: str, dump: Dump | None = None) -> None:
        self.folder = folder
        self.dump: Dump = dump or read_dump(folder)

    def load(self, row: Row) -> Tensor:
        """The tensor of a row that has a file. Raises UsageError if it is not there, or has another shape."""
        file, name = row["file"], row["name"]
        tensor: Tensor = self._opened(file, lambda opened: opened.get_tensor(name))
        if row["shape"] is not None and list(tensor.shape) != row["shape"]:
            raise UsageError(
                f"{Path(self.folder) / file}: {name} has the shape {list(tensor.shape)}, not {row['shape']}"
            )
        return tensor

    def arguments(self, batch: int) -> tuple[tuple[object, ...], dict[str, object], object]:
        """The arguments of the model's run on a batch, and the loss's target. Raises UsageError if they are damaged."""
        # Copies lie in memory as PyTorch aligns it; kernels may round otherwise elsewhere.
        tensors = self._opened(
            INPUTS.format(batch),
            lambda file: {name: file.get_tensor(name).clone() for name in file.keys()},  # noqa: SIM118
        )
        try:
            return decoded_call(self.dump.inputs[batch], tensors)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"{self.folder}: damaged: the inputs of batch {batch + 1} can't be read ({error})"
            ) from error

    def _opened(self, file: str, read: Callable[[Any], object]) -> Any:
        """The result of `read` on an open file. Raises UsageError."""
        path = Path(self.folder) / file
        try:
            from safetensors import safe_open

            with safe_open(regular(path, self.folder), framework="pt") as opened:
                return read(opened)
        except ImportError as error:
            raise UsageError("dumps: reading them needs safetensors: pip install 'hookcli[safetensors]'") from error
        except Exception as error:  # safetensors raises its own classes
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UsageError(f"{path}: can't be read as a dump's tensors ({why})") from error
