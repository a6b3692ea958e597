"""Recurrent and attention modules that take the rows of the batch for time, as batch_first is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from weakref import ref

import torch
from torch import nn

from hookcli.capabilities.learn.graphs import Mark
from hookcli.capabilities.learn.losses.lost_head import DROPS, LAYERS
from hookcli.hooks.events import HookEvent
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.nodes import dropped_dimension, operator
from hookcli.probes.shared.doubled import ARRANGES
from hookcli.tensors import tree

_SEQUENCES, _NODES = 3, 8  # dimensions of a batch of sequences; nodes on the way
_ON_THE_WAY = {*ARRANGES, *DROPS, "NativeLayerNorm", "Select", "Mean", "Sum", "Max", "Div"}

_CLASSES = (
    *(nn.RNNBase, nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)


@dataclass
class TimeFirst:
    """The modules that took dimension 0 of their first input in a step for time, each with the shape of this input."""

    shapes: dict[str, list[int]] = field(default_factory=dict)
    outputs: dict[str, ref[Mark]] = field(default_factory=dict)
    sliced: bool = False
    """True if the model gets slices of a tensor, which may be the steps of one long sequence."""
    read: set[str] = field(default_factory=set)
    """Those whose sequence, dimension 0, goes on whole into a layer, while one place of the rows is left."""

    def enter(self, event: HookEvent) -> None:
        """Note a module that gets a batch of sequences. Outer ones come first, which give batch_first to inner ones."""
        if self.outputs and isinstance(event.module, LAYERS):
            self.note_reader(event)
        if not isinstance(event.module, _CLASSES) or event.fqn in self.shapes or not torch.is_grad_enabled():
            return
        setting = next((vars(one)["batch_first"] for one in event.module.modules() if "batch_first" in vars(one)), True)
        received = tree.received(event.args, event.kwargs) if not setting else []
        self.shapes[event.fqn] = tree.shape_of(received[0]) if received else []

    def leave(self, event: HookEvent) -> None:
        """Mark what such a module returned."""
        node = tree.tensors(event.output)[0].grad_fn if len(self.shapes.get(event.fqn, ())) == _SEQUENCES else None
        if node is not None:
            self.outputs.setdefault(event.fqn, Mark.on(node))

    def sequences(self) -> Iterator[tuple[str, list[int]]]:
        """The modules that got batches of sequences, and the shapes of these."""
        return ((fqn, shape) for fqn, shape in self.shapes.items() if len(shape) == _SEQUENCES)

    def note_reader(self, event: HookEvent) -> None:
        """Note which of the marked sequences a layer is about to read without their dimension 1."""
        ends = [x.grad_fn for x in tree.received(event.args, event.kwargs) if x.grad_fn is not None]
        marks = [(fqn, mark) for fqn, one in self.outputs.items() if (mark := one()) is not None]
        for node in islice(walk(ends, lambda node: operator(node) in _ON_THE_WAY), _NODES):
            before = node.next_functions[0][0]
            if before is not None and dropped_dimension(node) == 1:
                self.read |= {fqn for fqn, mark in marks if mark.is_on(before)}

    def fields(self, targets: list[int], name: Callable[[str], str]) -> dict[str, Any]:
        """The fields of a line on the first module that takes as many steps of a sequence as these targets have rows.

        It is not told if it gets one sequence alone, or as many as the targets have rows or positions of a row: then
        dimension 0 may be the sequence as well.
        """
        for fqn, shape in self.shapes.items():
            if (
                len(shape) == _SEQUENCES
                and shape[:1] == targets[:1]
                and shape[1] > 1
                and not may_be_rows(shape[1], targets)
            ):
                what = f"dimension 0 of its input ({shape[0]:,}, the batch) for the sequence"
                lost = fqn in self.read and not self.sliced
                return {"over_batch": f"{name(fqn) or 'the model'} takes {what}", "rows_lost": lost}
        return {}


def may_be_rows(size: int, targets: list[int]) -> bool:
    """True if so many may be the rows of the targets, or the parts of these."""
    return size in targets or size % targets[0] == 0
