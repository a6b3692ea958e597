"""Reads state dicts from files, those of torch.save with `weights_only=True`, and fills models with them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from hookcli.errors import UsageError, UserCode, class_name, in_brief, shortened
from hookcli.system import files
from hookcli.table.formatting import listed
from hookcli.tensors.files.opening import INDEX, PICKLED, open_tensors
from hookcli.tensors.files.pytorch import STATE_DICTS, load

_NAMED = 3  # entries that did not fit, of each sort, that a message names
_SUFFIXES = (*PICKLED, ".safetensors", INDEX)
_WRAPPERS = ("module.", "_orig_mod.")  # of data-parallel and of compiled models


def _wrong(message: str) -> UsageError:
    return UsageError(message, option="weights")


def is_file(weights: str) -> bool:
    """True if `--weights` names a file or folder rather than published weights."""
    return weights.endswith(_SUFFIXES) or "/" in weights or files.is_folder(weights)


def read_state(file: str) -> tuple[dict[str, object], str | None]:
    """The state dict in a file, in its checkpoint, or in the files of a folder or an index, and a remark on its place.

    Raises UsageError if there is none.
    """
    if files.is_folder(file) or file.endswith(INDEX):
        return _read_parts(file), None
    if not files.is_file(file):
        raise _wrong(f"--weights: no file {shortened(file)!r}")
    state, key = _state_of(Path(file))
    for prefix in _WRAPPERS:
        consume_prefix_in_state_dict_if_present(state, prefix)
    return state, f"--weights {file}: took the state dict under {key!r}" if key else None


def _state_of(file: Path) -> tuple[dict[str, object], str | None]:
    """The state dict in one file, and the key under which a checkpoint has it. Raises UsageError if there is none."""
    state = _read(file)
    key = next((k for k in STATE_DICTS if isinstance(state, Mapping) and isinstance(state.get(k), Mapping)), None)
    state = state[key] if key else state
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise _wrong(f"--weights {file}: holds an object of type {class_name(state)}, not a state dict")
    return state, key


def _read_parts(place: str) -> dict[str, object]:
    """The tensors of a folder's files, or of those that an index names."""
    with UserCode(lambda error: _wrong(f"--weights {place}: {in_brief(error)}")):
        try:
            parts = open_tensors(place)
        except UsageError as error:
            raise _wrong(f"--weights {error}") from error
    folder = Path(place) if files.is_folder(place) else Path(place).parent
    wanted = {tensor.name for tensor in parts.tensors}
    state: dict[str, object] = {}
    for name in dict.fromkeys(tensor.file for tensor in parts.tensors):
        state |= _state_of(folder / name)[0]
    return {name: tensor for name, tensor in state.items() if name in wanted}


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
        raise _wrong(f"--weights {file}: not a safetensors file ({error})") from error


def fill(model: nn.Module, state: dict[str, object], strict: bool, name: str) -> str | None:
    """Load the state dict. Returns a remark on entries that did not fit, or raises UsageError for them if `strict`.

    A model on the meta device has no room for values: there names and shapes are only compared.
    """
    with UserCode(lambda error: _wrong(f"--weights {name}: the model's state_dict failed: {in_brief(error)}")):
        model_state = model.state_dict()
    state, moved = _without_prefix(state, model_state)
    sizes = {k: (_size(v), _size(model_state[k])) for k, v in state.items() if k in model_state}
    wrong = {k: f"{k} is {size}, not {needed}" for k, (size, needed) in sizes.items() if size != needed}
    fits = copy.copy(state)  # keeps the versions of modules, which state dicts carry besides their keys
    for name_of_wrong in wrong:
        del fits[name_of_wrong]
    with UserCode(lambda error: _wrong(f"--weights {name} does not fit the model: {in_brief(error)}")):
        result = model.load_state_dict(fits, strict=False)
    missing = [key for key in result.missing_keys if key not in state]
    unfit = {"missing": missing, "extra": result.unexpected_keys, "wrong shape": list(wrong.values())}
    faults = [f"{label} {len(keys)} ({listed(keys, _NAMED)})" for label, keys in unfit.items() if keys]
    if faults and strict:
        raise _wrong(f"--weights {name} does not fit the model: {'; '.join(faults)} (--no-strict loads what fits)")
    loaded = len(model_state.keys() & fits.keys())
    if faults:
        return f"--weights {name}: loaded {loaded} of {len(model_state)} tensors; {'; '.join(faults)}"
    return f"--weights {name}: took the tensors under {moved!r}" if moved else None


def _without_prefix(state: dict[str, object], model_state: Mapping[str, object]) -> tuple[dict[str, object], str]:
    """The state dict without the one name that all its keys begin with, if that fits the model, and this prefix.

    Lightning's modules and other wrappers keep the model in an attribute.
    """
    prefix = next(iter(state), "").partition(".")[0] + "."
    if model_state.keys() & state.keys() or not all(key.startswith(prefix) for key in state):
        return state, ""
    rest = {key.removeprefix(prefix): value for key, value in state.items()}
    return (rest, prefix) if model_state.keys() & rest.keys() else (state, "")


def _size(value: object) -> str:
    return "x".join(map(str, value.shape)) or "scalar" if isinstance(value, Tensor) else type(value).__name__
