"""What a report says of the run that it is of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hookcli import tree


def describe_run(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """What a report's `meta` says of a run: versions, device, dtype, mode, input shapes."""
    tensors: list[Tensor] = [*model.parameters(), *(t for _, t in tree.leaves(inputs)), torch.empty(0)]
    tensor = tensors[0]
    shapes = [tree.shape_text(t) for _, t in tree.leaves(inputs)]
    return {
        "torch": torch.__version__,
        "device": str(tensor.device),
        "dtype": tree.dtype_text(tensor),
        "mode": "train" if model.training else "eval",
        "input": ", ".join(shapes),
    }
