"""Gradients of the tensors that modules receive, by each module's use of them, without a change to the graph.

A tensor's own hook gets the sum over everything that used it. A module's part of that sum arrives from the autograd
nodes which the module's forward makes from the tensor: they get a hook as they are made, and their gradients are added
up. A module that makes nothing of the tensor but returns it (Identity) has handed it on: the tensor's whole gradient is
told, with `handed_on`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import unserializable_hook

from hookcli.hooks.autograd_graph import walk
from hookcli.hooks.calls import Call
from hookcli.hooks.core import SessionCore
from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.node_creation import NodeCreation
from hookcli.hooks.received import Edge, ReceivedTensor, TensorVersion
from hookcli.hooks.tensor_hooks import TensorHooks
from hookcli.tensors import tree

Grads = tuple[Tensor | None, ...]


class InputGrads:
    """What the calls under way received. `TensorGradHooks` tells of their begin and end."""

    def __init__(self, core: SessionCore, hooks: TensorHooks, creation: NodeCreation) -> None:
        self._core = core
        self._hooks = hooks
        self._creation = creation
        self._open: dict[Edge, list[ReceivedTensor]] = {}

    def start(self) -> None:
        """Be told of every node that is made from now on. PyTorch has that since 2.15; before, `returned` searches."""
        if self._creation.available:
            self._creation.listen(partial(self._hook, self._open))

    def receive(self, call: Call, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """A call begins, with these tensors that require grad."""
        found: dict[int, ReceivedTensor] = {}
        for path, x in tensors:
            if not self._hooks.hookable(x):
                continue
            event = HookEvent(HookKind.TENSOR_GRAD_INPUT, call.hooked.fqn, call.hooked.module, call.number, path=path)
            if id(x) in found:
                found[id(x)].events.append(event)
                continue
            edge: Edge = id(x) if x.is_leaf else (x.grad_fn, x.output_nr)  # type: ignore[assignment]
            shape = None if x.is_nested else x.shape
            use = found[id(x)] = ReceivedTensor(edge, [event], shape, -1 if x.is_inference() else x._version)
            settle = unserializable_hook(self._core.guard(partial(self._settle, use)))
            self._hooks.keep(x.register_hook(settle), leaf=x.is_leaf)
            if self._creation.available:
                self._open.setdefault(edge, []).append(use)
        call.received = found
        call.began = torch._C._autograd._get_sequence_nr()

    def returned(self, call: Call, received: Mapping[int, Tensor], returned: Sequence[Tensor]) -> None:
        """The call is over: note what it handed on, and what of it is a view that can lose its hooks."""
        if not self._creation.available:
            self._search(returned, call)
        same, bases = {id(y) for y in returned}, {id(tree.base(y)) for y in returned if y._is_view()}
        for key, x in received.items():
            if use := call.received.get(key):
                self._compare(x, use, handed_on=key in same, seen=id(tree.base(x)) in bases)

    def _compare(self, x: Tensor, use: ReceivedTensor, *, handed_on: bool, seen: bool) -> None:
        changed = use.version >= 0 and x._version != use.version
        use.lost = changed and x._is_view()  # its gradient goes past it, to what it is a view of
        use.handed_on = handed_on and not changed
        if seen and use.version >= 0:  # a view of it was returned, which the caller may change
            use.views.append(TensorVersion(x))

    def leave(self, call: Call) -> None:
        """The call is over, whatever way it ended."""
        for use in call.received.values():
            if found := self._open.get(use.edge):
                found[:] = [other for other in found if other is not use]
                if not found:
                    del self._open[use.edge]
            use.edge = 0  # the node would hold its own hook, and so itself
        call.received = {}

    # Nodes.

    def _hook(self, uses: dict[Edge, list[ReceivedTensor]], node: Node) -> None:
        if not uses:
            return
        for place, (after, number) in enumerate(node.next_functions):
            if after is None:
                continue
            leaf = type(after).__name__ == "AccumulateGrad"
            received = uses.get(id(after.variable) if leaf else (after, number), [])  # type: ignore[attr-defined]
            for use in reversed(received):  # a part's comes before that of the module around it
                use.made += 1
                self._hooks.keep(node.register_hook(self._core.guard(partial(self._arrive, use, place))))

    def _search(self, outputs: Sequence[Tensor], call: Call) -> None:
        """Find the nodes of a call that lead to its outputs, which it made since it began."""
        uses = {use.edge: [use] for use in call.received.values()}
        ends = [y.grad_fn for y in outputs if y.grad_fn is not None]
        for node in list(walk(ends, lambda node: node._sequence_nr() >= call.began)):
            self._hook(uses, node)

    # Gradients.

    def _arrive(self, use: ReceivedTensor, place: int, grad_inputs: Grads, _: Grads) -> None:
        grad = grad_inputs[place]
        use.arrived += 1
        if grad is not None:
            with torch.no_grad():
                use.add(grad.detach())
        if use.arrived == use.made:
            self._tell(use)

    def _settle(self, use: ReceivedTensor, grad: Tensor | None) -> None:
        """Everything that used the tensor has handed its gradient on; some nodes may not have been reached."""
        if use.arrived:
            self._tell(use)
        elif use.handed_on and not use.made and grad is not None:
            self._emit(use, grad.detach())

    def _tell(self, use: ReceivedTensor) -> None:
        total, use.total, use.arrived = use.total, None, 0
        if total is not None:
            self._emit(use, total)

    def _emit(self, use: ReceivedTensor, grad: Tensor) -> None:
        if use.lost or any(version.changed() for version in use.views):
            return
        for event in use.events:
            self._core.emit_gradient(replace(event, handed_on=use.handed_on and not use.made), grad)
