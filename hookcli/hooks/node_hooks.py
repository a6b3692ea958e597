"""Hooks on autograd nodes, and the module whose forward created each node.

With PyTorch's hook on the creation of nodes (torch 2.14) this is exact, and covers backward passes that the model runs
itself. Without it, a module that returns claims the nodes between its outputs and the nodes claimed earlier; a node
that no module's output leads to goes unnoticed. Facts about a node are stored in its `metadata`, so that neither nodes
nor the tensors that they saved are kept alive.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy

from hookcli.hooks.events import HookEvent, NodeInfo
from hookcli.hooks.kinds import FULL_BACKWARD, NODE, HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.parts import selects_parameter
from hookcli.hooks.session_core import HookGroup, Needs, SessionCore
from hookcli.hooks.torch_private.autograd import next_sequence_number, queue_callback, sequence_number, tracing_context
from hookcli.tensors import tree
from hookcli.tensors.tree import is_dense


def walk(ends: Iterable[Node], wanted: Callable[[Node], bool] = lambda node: True) -> Iterator[Node]:
    """Yield the nodes that are reached from `ends`, breadth first, each once; the walk stops at unwanted ones."""
    waiting = deque(ends)
    seen = set(waiting)
    waiting = deque(dict.fromkeys(waiting))
    while waiting:
        node = waiting.popleft()
        if not wanted(node):
            continue
        yield node
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                waiting.append(after)


def nodes_of(roots: Iterable[Tensor]) -> list[Node]:
    """Return the nodes that created these tensors; for a leaf, its gradient accumulator."""
    return [root.grad_fn or gradient_accumulator(root) for root in roots]


def gradient_accumulator(leaf: Tensor) -> Node:
    """Return the AccumulateGrad node of a leaf that requires grad; asking for it may create it."""
    if is_dense(leaf):
        return graph.get_gradient_edge(leaf).node
    with torch.enable_grad():  # the edge is found by a view, which sparse and nested tensors don't have
        node: Any = leaf.clone().grad_fn
    accumulator: Node = node.next_functions[0][0]
    return accumulator


def metadata_of(node: Node) -> dict[Any, Any]:
    """Return the dictionary of a node, which lives as long as it does."""
    return cast("dict[Any, Any]", node.metadata)  # a property, which PyTorch types as a method


OUTSIDE = "(loss)"
"""The place of nodes that no module created."""
LEAF = "(leaf)"
"""The place of leaves that are not parameters: the model's inputs, and tensors that it creates in forward."""


class ListenersOfThread(threading.local):
    """Listeners for the new nodes of a thread, behind one hook of PyTorch, which keeps a stack of hooks per thread."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Node], None]] = []
        self.hook: AbstractContextManager[object] | None = None


_OF_THREAD = ListenersOfThread()


@contextmanager
def new_nodes(listener: Callable[[Node], None]) -> Iterator[None]:
    """Call `listener` with every node that this thread creates within the block.

    Blocks may end in any order, and in another thread. There PyTorch's hook can't be taken off, so it stays in its own
    thread, without a listener, until a later block of that thread has ended.
    """
    listeners = _OF_THREAD.listeners

    def created(node: Node) -> None:
        for each in [*listeners]:
            each(node)

    if _OF_THREAD.hook is None:
        _OF_THREAD.hook = graph.node_creation_hook(created)
        _OF_THREAD.hook.__enter__()
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
        if _OF_THREAD.listeners is listeners and _OF_THREAD.hook and not listeners:
            _OF_THREAD.hook.__exit__(None, None, None)
            _OF_THREAD.hook = None


class NodeCreation:
    """One hook, shared by everything that listens for new autograd nodes. `available`: this PyTorch has such hooks."""

    def __init__(self, core: SessionCore) -> None:
        self.available = hasattr(graph, "node_creation_hook")
        self._core = core
        self._listeners: list[Callable[[Node], None]] = []

    def listen(self, listener: Callable[[Node], None]) -> None:
        """Call `listener` with every node that is created from now on."""
        if not self._listeners:
            self._core.stack.enter_context(new_nodes(self._core.guarded(self._created)))
        self._listeners.append(listener)

    def _created(self, node: Node) -> None:
        if tracing_context() is None:  # else torch.compile is tracing: this graph never runs
            for listener in self._listeners:
                listener(node)


class NodeHooks(HookGroup):
    """`node_creation`, `node_pre`, `node` and `engine_callback`. `made` lists every node found.

    `unwatched_too`: also call back for nodes of modules that are not watched.
    """

    kinds = NODE
    needs = Needs.EVERY_CALL

    def __init__(self, core: SessionCore, creation: NodeCreation) -> None:
        super().__init__(core)
        self._creation = creation
        self.made: list[NodeInfo] = []
        self.exact = creation.available
        self.unwatched_too = False
        self._key = object()
        self._started = False
        self._ours = False
        self._numbers: set[int] = set()
        self._kept: dict[Node, None] = {}
        self._noted: list[dict[object, NodeInfo]] = []
        self._names: dict[int, str] = {}
        self._asked: set[str] | None = None

    def start(self, kind: HookKind) -> None:
        """Prepare to hook autograd nodes; one preparation serves all kinds."""
        if self._started:
            return
        self._started = True
        self._names = {id(p): fqn for fqn, p in self.core.model.named_parameters(remove_duplicate=False)}
        if select := self.core.select:
            named = (fqn for fqn in self._names.values() if selects_parameter(select, self.core.model, fqn))
            self._asked = {*named, *(fqn for fqn, _ in self.core.selected())}
        self.core.stack.callback(self._forget)
        if self.exact:
            self._creation.listen(self._created)
        self.core.before_backward(self._hook_graph)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark nodes that are created in this block as hookcli's own."""
        self._ours = True
        first = next_sequence_number()
        try:
            yield
        finally:
            self._ours = False
            if self._started and not self.exact:  # known by their numbers once a module claims them
                self._numbers |= {*range(first, next_sequence_number())}

    def claim(self, value: object, call: Call | None = None) -> None:
        """Assign the unclaimed nodes behind a value to this call, or to the innermost one."""
        if not self._started or self.exact:
            return
        ends = [x.grad_fn for _, x in tree.leaves(value) if x.grad_fn is not None]
        unclaimed = list(walk(ends, lambda node: self._key not in _notes(node)))
        for node, made in [(node, self._note(node, call)) for node in unclaimed]:
            self._hook(node, made)

    def following(self, made: NodeInfo) -> list[int | None]:
        """Return the ids of the nodes that get its gradients, skipping hookcli's own nodes."""
        ids: list[int | None] = []
        for after in made.next:
            ours = after is not None and self.made[after].ours
            ids += self.following(self.made[after]) if after is not None and ours else [after]
        return ids

    def _created(self, node: Node) -> None:
        made = self._made(node)
        if not self._ours:
            self._emit(HookKind.NODE_CREATION, made)
        if not (self.core.follow and made.fqn == OUTSIDE):  # beyond the model's outputs
            self._hook(node, made)

    def _note(self, node: Node, call: Call | None = None) -> NodeInfo:
        call = call or self.core.calls.innermost()
        variable = getattr(node, "variable", None)
        fqn = call.hooked.fqn if call else OUTSIDE
        if variable is not None:
            fqn = self._names.get(id(variable), LEAF)
        name = node.name().rpartition("::")[2]
        passes = name == "BackwardHookFunctionBackward" and self.core.wants(*FULL_BACKWARD)
        ours = passes or (variable is None and (self._ours or sequence_number(node) in self._numbers))
        watched, again = self._asked is None or fqn in self._asked, call is not None and call.again
        made = NodeInfo(len(self.made), name, fqn, call.number if call else 0, ours, watched, again)
        notes = _notes(node)
        notes[self._key] = made
        self._noted.append(notes)
        self.made.append(made)
        return made

    # Firing.

    def _hook_graph(self, roots: Iterable[Tensor]) -> None:
        ends = nodes_of(roots)
        if not ends:
            return
        with self.ours():  # asking for an accumulator creates it
            for parameter in self.core.model.parameters():
                if parameter.requires_grad and not is_lazy(parameter):
                    # A gradient accumulator that nobody holds vanishes, and its hooks with it.
                    self._kept[gradient_accumulator(parameter)] = None
        for node in walk([*ends, *self._kept]):
            self._hook(node, self._made(node))
        queued = not self.core.wants(HookKind.ENGINE_CALLBACK)

        def queue(grads: object) -> None:
            nonlocal queued
            if not queued:
                queued = True
                queue_callback(partial(self._emit, HookKind.ENGINE_CALLBACK, None))

        if not queued:
            self.core.stack.enter_context(ends[0].register_prehook(queue))

    def in_walk_order(self, roots: Iterable[Tensor]) -> list[NodeInfo]:
        """Return the nodes below these tensors in walk order, as the C++ hooks number them."""
        return [self._made(node) for node in walk(nodes_of(roots))]

    def _made(self, node: Node) -> NodeInfo:
        return _notes(node).get(self._key) or self._note(node)

    def _hook(self, node: Node, made: NodeInfo) -> None:
        made.next = [self._made(after).id if after is not None else None for after, _ in node.next_functions]
        if not made.hooked and self.core.wants(HookKind.NODE_PRE, HookKind.NODE):
            made.hooked = True
            for kind, register in ((HookKind.NODE_PRE, node.register_prehook), (HookKind.NODE, node.register_hook)):
                if self.core.wants(kind):
                    self.core.stack.enter_context(register(self.core.guarded(partial(self._emit, kind, made))))

    def _emit(self, kind: HookKind, made: NodeInfo | None, *grads: tuple[Tensor | None, ...]) -> None:
        """Emit an event. `grads`: the gradients that a pre-hook gets, of outputs; or a hook, of inputs and outputs."""
        if not self.core.wants(kind) or (made and (made.ours or not (made.watched or self.unwatched_too))):
            return
        event = HookEvent(kind, "", index=self.core.next_arrival())
        if made:
            event.fqn, event.call, event.name, event.node = made.fqn, made.call, made.name, made
        if grads:
            event.grad_inputs, event.grad_outputs = grads[0] if grads[1:] else (), grads[-1]
        self.core.emit(event)

    def _forget(self) -> None:
        for notes in self._noted:
            notes.pop(self._key, None)
        self._noted.clear()
        self._kept.clear()


def _notes(node: Node) -> dict[object, NodeInfo]:
    return metadata_of(node)
