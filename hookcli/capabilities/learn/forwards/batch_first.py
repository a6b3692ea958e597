"""Recurrent and attention modules that take the rows of the batch for time, as batch_first is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hookcli.hooks.events import HookEvent
from hookcli.tensors import tree

_CLASSES = (
    *(nn.RNNBase, nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)


@dataclass
class TimeFirst:
    """The modules that took dimension 0 of their first input in a step for time, each with the shape of this input."""

    shapes: dict[str, list[int]] = field(default_factory=dict)

    def enter(self, event: HookEvent) -> None:
        """Note a module that gets a batch of sequences. Outer ones come first, which give batch_first to inner ones."""
        if not isinstance(event.module, _CLASSES) or event.fqn in self.shapes or not torch.is_grad_enabled():
            return
        setting = next((vars(one)["batch_first"] for one in event.module.modules() if "batch_first" in vars(one)), True)
        received = tree.received(event.args, event.kwargs) if not setting else []
        self.shapes[event.fqn] = tree.shape_of(received[0]) if received else []

    def fields(self, targets: list[int], name: Callable[[str], str]) -> dict[str, Any]:
        """The fields of a line on the first module that takes as many steps of a sequence as these targets have rows.

        It is not told if it gets one sequence alone, or as many as the targets have rows or positions of a row: then
        dimension 0 may be the sequence as well.
        """
        for fqn, shape in self.shapes.items():
            if len(shape) == 3 and shape[:1] == targets[:1] and shape[1] > 1 and not may_be_rows(shape[1], targets):
                what = f"dimension 0 of its input ({shape[0]:,}, the batch) for the sequence"
                return {"over_batch": f"{name(fqn) or 'the model'} takes {what}"}
        return {}


def may_be_rows(size: int, targets: list[int]) -> bool:
    """True if so many may be the rows of the targets, or the parts of these."""
    return size in targets or size % targets[0] == 0
