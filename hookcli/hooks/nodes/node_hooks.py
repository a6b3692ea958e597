"""Hooks on autograd nodes, and the module whose forward created each node.

With PyTorch's hook on the creation of nodes (torch 2.14) this is exact, and covers backward passes that the model runs
itself. Without it, a module that returns claims the nodes between its outputs and the nodes claimed earlier; a node
that no module's output leads to goes unnoticed. Facts about a node are stored in its `metadata`, so that neither nodes
nor the tensors that they saved are kept alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy

from hookcli.hooks.events import HookEvent, NodeInfo
from hookcli.hooks.hook_group import HookGroup, Needs
from hookcli.hooks.kinds import FULL_BACKWARD, NODE, HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.nodes.graph_walk import gradient_accumulator, nodes_of, walk
from hookcli.hooks.nodes.node_creation import NodeCreation
from hookcli.hooks.select import selects_parameter
from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.torch_private.autograd import next_sequence_number, queue_callback, sequence_number
from hookcli.tensors import tree

OUTSIDE = "(loss)"
"""The place of nodes that no module created."""
LEAF = "(leaf)"
"""The place of leaves that are no parameters: the model's inputs, and tensors that it creates in forward."""


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
        self._noted: list[dict[Any, Any]] = []
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
    def _marking(self) -> Iterator[None]:
        self._ours = True
        first = next_sequence_number()
        try:
            yield
        finally:
            self._ours = False
            if not self.exact:  # known by their numbers once a module claims them
                self._numbers |= {*range(first, next_sequence_number())}

    def ours(self) -> AbstractContextManager[None]:
        """Mark nodes that are created in this block as hookcli's own."""
        return self._marking() if self._started else nullcontext()

    def claim(self, value: Any, call: Call | None = None) -> None:
        """Assign the unclaimed nodes behind a value to this call, or to the innermost one."""
        if not self._started or self.exact:
            return
        ends = [x.grad_fn for _, x in tree.leaves(value) if x.grad_fn is not None]
        found = list(walk(ends, lambda node: self._key not in _notes(node)))
        for node, made in [(node, self._note(node, call)) for node in found]:
            self._hook(node, made)

    def following(self, made: NodeInfo) -> list[int | None]:
        """Return the ids of the nodes that get its gradients, skipping hookcli's own nodes."""
        found: list[int | None] = []
        for after in made.next:
            ours = after is not None and self.made[after].ours
            found += self.following(self.made[after]) if after is not None and ours else [after]
        return found

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
        if self.core.wants(HookKind.ENGINE_CALLBACK):
            self._queue_callback(ends[0])

    def in_walk_order(self, roots: Iterable[Tensor]) -> list[NodeInfo]:
        """Return the nodes below these tensors in walk order, as the C++ hooks number them."""
        return [self._made(node) for node in walk(nodes_of(roots))]

    def _made(self, node: Node) -> NodeInfo:
        return _notes(node).get(self._key) or self._note(node)

    def _hook(self, node: Node, made: NodeInfo) -> None:
        made.next = [self._made(after).id if after is not None else None for after, _ in node.next_functions]
        if not made.hooked and self.core.wants(HookKind.NODE_PRE, HookKind.NODE):
            made.hooked = True
            if self.core.wants(HookKind.NODE_PRE):
                self.core.stack.enter_context(node.register_prehook(self.core.guarded(partial(self._pre, made))))
            if self.core.wants(HookKind.NODE):
                self.core.stack.enter_context(node.register_hook(self.core.guarded(partial(self._post, made))))

    def _queue_callback(self, first: Node) -> None:
        queued = False

        def queue(grads: Any) -> None:
            nonlocal queued
            if not queued:
                queued = True
                queue_callback(partial(self._emit, HookKind.ENGINE_CALLBACK, None))

        self.core.stack.enter_context(first.register_prehook(queue))

    def _pre(self, made: NodeInfo, grad_outputs: tuple[Tensor | None, ...]) -> None:
        self._emit(HookKind.NODE_PRE, made, grad_outputs=grad_outputs)

    def _post(self, made: NodeInfo, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        self._emit(HookKind.NODE, made, grad_inputs=grad_inputs, grad_outputs=grad_outputs)

    def _emit(self, kind: HookKind, made: NodeInfo | None, **shown: Any) -> None:
        if not self.core.wants(kind) or (made and (made.ours or not (made.watched or self.unwatched_too))):
            return
        where: dict[str, Any] = (
            {"fqn": made.fqn, "call": made.call, "name": made.name, "node": made} if made else {"fqn": ""}
        )
        self.core.emit(HookEvent(kind, index=self.core.next_arrival(), **where, **shown))

    def _forget(self) -> None:
        for notes in self._noted:
            notes.pop(self._key, None)
        self._noted.clear()
        self._kept.clear()


def _notes(node: Node) -> dict[Any, Any]:
    metadata: Any = node.metadata  # PyTorch's stub has a method
    return metadata  # type: ignore[no-any-return]
