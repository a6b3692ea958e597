"""Reads state dicts from files: `.pt`, `.pth`, `.bin` (with `weights_only=True`) and `.safetensors`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from hookcli.errors import UsageError, UserCode, in_brief, shortened
from hookcli.report.formatting import listed
from hookcli.system import files

_NAMED = 3  # entries that did not fit, of each sort, that a message names
SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")


def _wrong(message: str) -> UsageError:
    return UsageError(message, option="weights")


def is_file(weights: str) -> bool:
    """True if `--weights` names a file rather than published weights."""
    return Path(weights).suffix in SUFFIXES or "/" in weights


def read_state(file: str) -> dict[str, Any]:
    """The state dict in a file or in its checkpoint. Raises UsageError if there is none."""
    if not files.is_file(file):
        raise _wrong(f"--weights: no file {shortened(file)!r}")
    state = _read_safetensors(file) if file.endswith(".safetensors") else _read_pickle(file)
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise _wrong(f"--weights {file}: holds a {type(state).__name__}, not a state dict")
    consume_prefix_in_state_dict_if_present(state, "module.")  # saved from a data-parallel wrapper
    return state


def _read_safetensors(file: str) -> Any:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise _wrong(f"--weights {file}: reading it needs safetensors: pip install safetensors") from error
    try:
        return load_file(file)
    except SafetensorError as error:
        raise _wrong(f"--weights {file}: not a safetensors file ({error})") from error


def _read_pickle(file: str) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no checkpoint makes the unpickler fail in many ways
        if isinstance(error, pickle.UnpicklingError) and "global" in str(error).lower():
            refused = "refused, since loading it could run code (torch.load with weights_only=True)"
            raise _wrong(f"--weights {file}: {refused}: save model.state_dict() instead") from error
        raise _wrong(f"--weights {file}: was not written by torch.save") from error


def fill(model: nn.Module, state: dict[str, Any], strict: bool, name: str) -> str | None:
    """Load the state dict. Returns a remark on entries that did not fit, or raises UsageError for them if `strict`.

    A model on the meta device has no room for values: there names and shapes are only compared.
    """
    with UserCode(lambda error: _wrong(f"--weights {name}: the model's state_dict failed: {in_brief(error)}")):
        own = model.state_dict()
    wrong = [
        f"{k} is {_size(v)}, not {_size(own[k])}" for k, v in state.items() if k in own and _size(v) != _size(own[k])
    ]
    fits = copy.copy(state)  # keeps the versions of modules, which state dicts carry besides their keys
    for line in wrong:
        del fits[line.partition(" ")[0]]
    with UserCode(lambda error: _wrong(f"--weights {name} does not fit the model: {in_brief(error)}")):
        result = model.load_state_dict(fits, strict=False)
    missing = [key for key in result.missing_keys if key not in state]
    faults = [
        f"{label} {len(keys)} ({listed(keys, _NAMED)})"
        for label, keys in (("missing", missing), ("extra", result.unexpected_keys), ("wrong shape", wrong))
        if keys
    ]
    if faults and strict:
        raise _wrong(f"--weights {name} does not fit the model: {'; '.join(faults)} (--no-strict loads what fits)")
    loaded = len(own.keys() & fits.keys())
    return f"--weights {name}: loaded {loaded} of {len(own)} tensors; {'; '.join(faults)}" if faults else None


def _size(value: Any) -> str:
    return "x".join(map(str, value.shape)) or "scalar" if isinstance(value, Tensor) else type(value).__name__
