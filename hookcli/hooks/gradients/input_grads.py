"""Gradients of modules' inputs, from each module's own use of them, without a change to the graph.

A tensor's own hook gets the sum over everything that used the tensor. A module's part of that sum comes from the
autograd nodes that the module's forward creates from the tensor: they get a hook when they are created, and their
gradients are added up. If a module hands the tensor on, others use it in the module's stead, and nothing tells these
uses from the rest: the event has the tensor's whole gradient, and is marked `handed_on`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle, unserializable_hook

from hookcli.hooks.events import HookEvent
from hookcli.hooks.gradients.tensor_hooks import TensorHooks
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.node_hooks import NodeCreation, walk
from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.tensor_origins import Edge, ReceivedTensor, TensorVersion, version_of
from hookcli.hooks.torch_private.autograd import next_sequence_number, sequence_number
from hookcli.tensors import tree
from hookcli.tensors.containers import kept_tensors
from hookcli.tensors.torch_private import is_view

Grads = tuple[Tensor | None, ...]


class InputGrads:
    """Hooks on the inputs of calls. `TensorGradHooks` calls it when a call begins and ends."""

    def __init__(self, core: SessionCore, hooks: TensorHooks, creation: NodeCreation) -> None:
        self._core = core
        self._hooks = hooks
        self._creation = creation
        self._open: dict[Edge, list[ReceivedTensor]] = {}

    def start(self) -> None:
        """Listen for new nodes, which PyTorch offers since 2.14; before, `returned` searches for them."""
        if self._creation.available:
            self._creation.listen(partial(self._hook, self._open))

    def receive(self, call: Call, tensors: Sequence[tuple[str, Tensor]], hidden: Sequence[Tensor]) -> None:
        """Hook the tensors that require grad as a call receives them. `hidden`: those in objects that it receives."""
        received: dict[int, ReceivedTensor] = {}
        places = Counter(map(id, (*(x for _, x in tensors), *hidden)))
        for path, x in tensors:
            if not self._hooks.hookable(x):
                continue
            event = HookEvent(HookKind.TENSOR_GRAD_INPUT, call.hooked.fqn, call.hooked.module, call.number, path=path)
            if id(x) in received:
                received[id(x)].events.append(event)
                continue
            edge: Edge = id(x) if x.is_leaf else (x.grad_fn, x.output_nr)  # type: ignore[assignment]
            shape = None if x.is_nested else x.shape
            use = received[id(x)] = ReceivedTensor(edge, [event], shape, version_of(x), places[id(x)])
            settle = unserializable_hook(self._core.guarded(partial(self._settle, use)))
            self._hooks.keep(x.register_hook(settle), leaf=x.is_leaf)
            if self._creation.available:
                self._open.setdefault(edge, []).append(use)
        call.received = received
        call.began = next_sequence_number()

    def returned(
        self, call: Call, received: Sequence[Tensor], returned: Sequence[Tensor], hidden: Sequence[Tensor]
    ) -> None:
        """Note the tensors that a call handed on, and the bases of returned views, which can lose their hooks.

        `received`: the tensors among its arguments now, to which the call may have added some; `hidden`: those in
        objects that it returned.
        """
        kept = list(kept_tensors(call.hooked.module))
        out, stored = set(map(id, (*returned, *hidden, *kept))), set(map(id, kept))
        plain = [y for y in (*hidden, *kept) if type(y) is Tensor]  # others may refuse, as uninitialized buffers do
        if not self._creation.available:  # hook the nodes that the call created, as far as its outputs lead to them
            uses = {use.edge: [use] for use in call.received.values()}
            outputs = [*returned, *(y for y in (*received, *plain) if not is_view(y))]
            ends = [y.grad_fn for y in outputs if y.grad_fn is not None]
            for node in list(walk(ends, lambda node: sequence_number(node) >= call.began)):
                self._hook(uses, node)
        bases = {id(tree.base(y)) for y in (*returned, *plain) if is_view(y)}
        places = Counter(map(id, received))
        for key, x in {id(x): x for x in received}.items():
            if use := call.received.get(key):
                for outer in self._core.calls.running if key in stored else ():  # the tensor came through these
                    if key in outer.received:
                        outer.received[key].handed_on = True
                changed = version_of(x) != use.version
                use.lost = changed and is_view(x)  # its gradient goes past it, to the tensor that it is a view of
                use.handed_on = (use.handed_on or key in out or places[key] > use.places) and not changed
                viewed = id(tree.base(x)) in bases or (use.handed_on and is_view(x))
                if viewed and use.version >= 0:  # others may change the view in place
                    use.views.append(TensorVersion(x))

    def leave(self, call: Call) -> None:
        for use in call.received.values():
            if uses := self._open.get(use.edge):
                uses[:] = [other for other in uses if other is not use]
                if not uses:
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
            for use in reversed(received):  # an inner module's gradient comes before the outer's
                use.made += 1
                handle = node.register_hook(self._core.guarded(partial(self._arrive, use, place)))
                self._hooks.keep(handle)
                self._hooks.keep(node.register_prehook(self._core.guarded(partial(_put_last, handle))))

    # Gradients.

    def _arrive(self, use: ReceivedTensor, place: int, grad_inputs: Grads, _: Grads) -> None:
        if use.handed_on:
            return
        grad = grad_inputs[place]
        use.arrived += 1
        if grad is not None:
            with torch.no_grad():
                use.add(grad.detach())
        if use.arrived == use.made:
            self._emit(use)

    def _settle(self, use: ReceivedTensor, grad: Tensor | None) -> None:
        """Emit what has arrived: the tensor's gradient is complete, though backward may not have reached every node."""
        if use.handed_on and grad is not None:
            self._emit(use, grad.detach())
        elif use.arrived:
            self._emit(use)

    def _emit(self, use: ReceivedTensor, grad: Tensor | None = None) -> None:
        """Emit a tensor's whole gradient; without one, the sum of what has arrived."""
        if grad is None:
            grad, use.total, use.arrived = use.total, None, 0
        if grad is None or use.lost or any(version.changed() for version in use.views):
            return
        for event in use.events:
            self._core.emit_gradient(replace(event, handed_on=use.handed_on), grad)


def _put_last(handle: RemovableHandle, _: Grads) -> None:
    """Have a node's hook called after the program's, such as full backward hooks, which change what flows on."""
    hooks = handle.hooks_dict_ref()
    if hooks and handle.id in hooks:
        hooks[handle.id] = hooks.pop(handle.id)
