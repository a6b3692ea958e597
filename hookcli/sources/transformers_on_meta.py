"""Models of Transformers on the meta device: what they read of tensors, and the kernels that meta tensors lack."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch


def runs_on_meta(library: ModuleType) -> None:
    """Have Transformers take meta tensors for FakeTensors, which it does not read, for all its models and for good."""
    utilities = getattr(getattr(library, "utils", None), "import_utils", None)
    experts = getattr(getattr(library, "integrations", None), "moe", None)
    _wrap(utilities, "is_fake_tensor", lambda original, value: original(value) or getattr(value, "is_meta", False))
    if experts is None:
        return
    try:  # whether experts can be multiplied in float32 on the meta device, as PyTorch does since 2.15
        with torch.device("meta"):
            groups = torch.empty(1, dtype=torch.int32)
            torch.nn.functional.grouped_mm(torch.empty(4, 4), torch.empty(1, 4, 4), offs=groups)
    except (AttributeError, RuntimeError):
        name = "_can_use_grouped_mm"  # without it: Transformers' own kernel of the same shapes
        _wrap(experts, name, lambda original, x, weight, *rest: not weight.is_meta and original(x, weight, *rest))


def _wrap(module: object, name: str, function: Callable[..., object]) -> None:
    """Replace a module's function, if it has one of this name, by `function`, which gets the original one first."""
    original = getattr(module, name, None)
    if original is not None and not hasattr(original, "hookcli"):
        wrapped = partial(function, original)
        wrapped.hookcli = True  # type: ignore[attr-defined]
        setattr(module, name, wrapped)
