"""Reads state dicts from files, torch.save's with `weights_only=True`, and fills models with them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hookcli.errors import UsageError, UserCode, class_name, in_brief, shortened
from hookcli.sources.fitting import ANY_SIZE, Fitting, size_text
from hookcli.system import files
from hookcli.table.formatting import counted, listed
from hookcli.table.meta import WEIGHTS
from hookcli.tensors.files.checkpoints import content
from hookcli.tensors.files.file_kinds import kind_of
from hookcli.tensors.files.opening import INDEX, PICKLED, open_tensors
from hookcli.tensors.files.pytorch import load

_NAMED = 3  # entries that did not fit, of each sort, that a message names
_SUFFIXES = (*PICKLED, ".safetensors", INDEX)


def _wrong(message: str) -> UsageError:
    return UsageError(message, option=WEIGHTS)


def is_file(weights: str) -> bool:
    """True if `--weights` names a file or folder rather than published weights."""
    return weights.endswith(_SUFFIXES) or "/" in weights or files.exists(weights)


def read_state(file: str) -> dict[str, object]:
    """The content of a checkpoint, or the state dict in the files of a folder or an index. Raises UsageError."""
    if files.is_folder(file) or file.endswith(INDEX):
        with UserCode(lambda error: _wrong(f"--weights {file}: {in_brief(error)}")):
            try:
                parts = open_tensors(file)
            except UsageError as error:
                raise _wrong(f"--weights {error}") from error
        folder = Path(file) if files.is_folder(file) else Path(file).parent
        wanted = {tensor.name for tensor in parts.tensors}
        state: dict[str, object] = {}
        for name in dict.fromkeys(tensor.file for tensor in parts.tensors):
            whole = _state_of(folder / name)
            state |= content(whole).tensors
        return {name: tensor for name, tensor in state.items() if name in wanted}
    if not files.is_file(file):
        raise _wrong(f"--weights: no file {shortened(file)!r}")
    return _state_of(Path(file))


def _state_of(file: Path) -> dict[str, object]:
    state = _read(file)
    if isinstance(state, list | tuple) and any(isinstance(part, dict) for part in state):  # of a model, an optimizer
        state = {f"{number}": part for number, part in enumerate(state)}
    if not isinstance(state, dict):
        raise _wrong(f"--weights {file}: holds an object of type {class_name(state)}, not a state dict")
    return state


def _read(file: Path) -> Any:
    """The content of a file: the tensors of safetensors, or the object that torch.save wrote."""
    try:
        if file.suffix != ".safetensors":
            return load(file)
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except UsageError as error:
        raise _wrong(f"--weights {error}") from error
    except ImportError as error:
        raise _wrong(f"--weights {file}: reading it needs safetensors: pip install 'hookcli[safetensors]'") from error
    try:
        return load_file(files.regular(file))
    except (SafetensorError, OSError) as error:
        kind = kind_of(file)
        why = f"{file} is {kind}" if kind else f"{file}: not a safetensors file ({error})"
        raise _wrong(f"--weights {why}") from error


@dataclass(frozen=True, slots=True)
class Filled:
    """How many of a model's tensors got their values from a file, and a remark on how they were found, or None."""

    loaded: int
    of: int
    remark: str | None

    @property
    def share(self) -> str:
        """The numbers in words, for a caption; "" if all were loaded."""
        return f" ({self.loaded} of {counted(self.of, 'tensor')})" if self.loaded < self.of else ""


def fill(model: nn.Module, checkpoint: dict[str, object], strict: bool, name: str) -> Filled:
    """Load the state dict in a checkpoint. Raises UsageError if nothing fits, and if `strict` unless all of it does.

    A model on the meta device has no room for values: there names and shapes are only compared.
    """
    with UserCode(lambda error: _wrong(f"--weights {name}: the model's state_dict failed: {in_brief(error)}")):
        model_state = model.state_dict()
    try:
        part = Fitting(checkpoint, model_state).part()
    except UsageError as error:
        raise _wrong(f"--weights {name}: {error}") from error
    wrong: dict[str, str] = {}
    fits = copy.copy(part.state)  # keeps the versions of modules, which state dicts carry besides their keys
    for key in filter(model_state.__contains__, part.state):
        size, needed = size_text(part.state[key]), size_text(model_state[key])
        if needed not in (size, ANY_SIZE):
            wrong[key] = f"{key} is {size}, not {needed}"
            del fits[key]
    with UserCode(lambda error: _wrong(f"--weights {name} does not fit the model: {in_brief(error)}")):
        result = model.load_state_dict(fits, strict=False)
    missing = [key for key in result.missing_keys if key not in wrong]
    loaded = len(fits) - len(result.unexpected_keys)
    labelled = {"missing": missing, "extra": result.unexpected_keys, "wrong shape": list(wrong.values())}
    faults = [f"{label} {len(keys)} ({listed(keys, _NAMED)})" for label, keys in labelled.items() if keys]
    if faults and not loaded:
        raise _wrong(f"--weights {name} does not fit the model at all: {'; '.join(faults)}")
    if faults and strict:
        raise _wrong(f"--weights {name} does not fit the model: {'; '.join(faults)} (--no-strict loads what fits)")
    count = [f"loaded {loaded} of {counted(len(model_state), 'tensor')}", *faults] if faults else []
    remarks = "; ".join([*part.remarks, *count])
    return Filled(loaded, len(model_state), f"--weights {name}: {remarks}" if remarks else None)
