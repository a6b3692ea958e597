"""Layers that receive the last state of a recurrent layer, where padding has followed the tokens of most rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from hookcli.capabilities.learn.graphs import Mark
from hookcli.capabilities.learn.losses.lost_head import DROPS, LAYERS
from hookcli.hooks.events import HookEvent
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.nodes import operator, selects_last
from hookcli.probes.shared.doubled import ARRANGES
from hookcli.tensors import tree

_MOST, _NODES = 0.5, 8  # of the rows; nodes on the way


@dataclass
class Returned:
    """The outputs of a recurrent layer for a batch in which some rows are padded."""

    fqn: str
    time: int
    """The dimension of time in its outputs."""
    outputs: ref[Mark]
    state: ref[Mark] | None
    """A mark on its last state; None for two directions, of which one ends with the first token."""
    padded: Tensor
    """The share of the rows whose last token is padding, on its device."""

    def is_last(self, node: Node) -> bool:
        """True if this node arranges the last state, or picks the last of the outputs."""
        before = [one for one, _ in node.next_functions if one is not None]
        outputs, state = self.outputs(), self.state() if self.state is not None else None
        if outputs is not None and any(map(outputs.is_on, before)):
            return selects_last(node, self.time)
        return state is not None and any(map(state.is_on, before))


@dataclass
class LastStates:
    """The recurrent layers of a step that get padded rows, and the layers that read their last states."""

    padding: Sequence[Tensor]
    """Where the tokens of each embedding in the step are padding."""
    returned: list[Returned] = field(default_factory=list)
    read: dict[str, Returned] = field(default_factory=dict)
    """For each layer, by name, the recurrent layer whose last state it reads."""

    def enter(self, event: HookEvent) -> None:
        """Look at what a layer is about to receive."""
        if not self.returned or not isinstance(event.module, LAYERS):
            return
        ends = [x.grad_fn for x in tree.received(event.args, event.kwargs) if x.grad_fn is not None]
        nodes = [*islice(walk(ends, lambda node: operator(node) in (*ARRANGES, *DROPS)), _NODES)]
        for one in self.returned:
            if any(map(one.is_last, nodes)):
                self.read[event.fqn] = one

    def leave(self, event: HookEvent) -> None:
        """Note what a recurrent layer returns, unless its rows are packed. Waits for nothing."""
        layer = event.module
        returned = tree.tensors(event.output)[:2]
        if not self.padding or not isinstance(layer, nn.RNNBase) or len(returned) < 2:
            return
        outputs, state = returned
        rows = tree.shape_of(outputs)[:-1]
        either_way = (one for x in self.padding if x.dim() == 2 for one in (x, x.t()))
        padding = next((x for x in either_way if tree.shape_of(x) == rows), None)
        if padding is None or outputs.grad_fn is None or state.grad_fn is None or rows[0] == rows[1]:
            return
        time = int(layer.batch_first)
        mark = None if layer.bidirectional else Mark.on(state.grad_fn)
        padded = padding.select(time, -1).mean(dtype=torch.float32)
        self.returned.append(Returned(event.fqn, time, Mark.on(outputs.grad_fn), mark, padded))

    def words(self, name: Callable[[str], str]) -> str:
        """Words on a layer that reads what padding has made of most rows; "" if none does. Waits for an accelerator."""
        for fqn, one in self.read.items():
            if (share := float(one.padded)) > _MOST:
                what = f"{name(fqn)} reads the last state of {name(one.fqn)}, which has read padding to the end"
                return f"{what} in {share:.0%} of the rows"
        return ""
