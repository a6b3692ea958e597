"""What a report says of the run that it is of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.tensors import tree


def floating_dtype(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """The first floating-point dtype among these, else the first complex one; None where there is neither.

    Those of eight bits don't count: a model stores weights in them, and computes in another.
    """
    dtypes = [x.dtype for x in tensors]
    real = (dtype for dtype in dtypes if dtype.is_floating_point and dtype.itemsize > 1)
    return next(real, None) or next((dtype for dtype in dtypes if dtype.is_complex), None)


def model_dtype(model: nn.Module) -> torch.dtype:
    """The dtype that a model's input has, unless it is told otherwise: that of its parameters, else of its buffers."""
    own = floating_dtype(model.parameters()) or floating_dtype(model.buffers())
    return own or torch.get_default_dtype()


def describe_run(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """What a report's `meta` says of a run: versions, device, dtype, mode, input shapes."""
    given = [t for _, t in tree.leaves(inputs)]
    tensors: list[Tensor] = [*model.parameters(), *given, torch.empty(0)]
    dtype = floating_dtype(model.parameters()) or floating_dtype(given) or tensors[0].dtype
    shapes = [tree.shape_text(t) for t in given]
    return {
        "torch": torch.__version__,
        "device": str(tensors[0].device),
        "dtype": str(dtype).removeprefix("torch."),
        "mode": "train" if model.training else "eval",
        "input": ", ".join(shapes),
    }
