"""Gradients of modules' inputs and outputs, from plain tensor hooks that change nothing.

The hook on an output is on the very tensor that the module returned. It fires once, with the sum over all uses, and
stays with that value through later in-place changes. If a module returns a tensor that it received (Identity), the
event has the tensor's whole gradient. A view that is changed in place later loses its hook: there is no event then.
The hooks on inputs are in input_grads.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import Tensor

from hookcli.hooks.events import HookEvent
from hookcli.hooks.gradients.edited_grads import EditedGrads
from hookcli.hooks.gradients.input_grads import InputGrads
from hookcli.hooks.gradients.tensor_hooks import GRADIENT_EDITS, TensorHooks
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.nodes.node_hooks import NodeCreation, NodeHooks
from hookcli.hooks.session_core import HookGroup, Needs, SessionCore
from hookcli.tensors import tree
from hookcli.tensors.hidden import hidden_tensors
from hookcli.tensors.torch_private import version
from hookcli.tensors.tree import Args, Kwargs

_IN, _OUT = GRADIENT_EDITS


class TensorGradHooks(HookGroup):
    """`tensor_grad_input` and `tensor_grad_output`. `ModuleHooks` calls it when a module is called, and returns."""

    kinds = (_IN, _OUT)
    needs = Needs.WATCHED_CALLS

    def __init__(self, core: SessionCore, nodes: NodeHooks, creation: NodeCreation) -> None:
        super().__init__(core)
        self.hooks = TensorHooks(core)
        self._inputs = InputGrads(core, self.hooks, creation)
        edited = any(edit.what in GRADIENT_EDITS.values() for edit in core.edits)
        self._edited = EditedGrads(core, nodes, self.hooks) if edited else None

    def start(self, kind: HookKind) -> None:
        if kind is _IN:
            self._inputs.start()

    def receive(self, call: Call, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Hook the tensors that a module receives. Returns other arguments to call it with, if edits need that."""
        if self._edited:
            return self._edited.receive(call, args, kwargs)
        inputs, outputs = self.core.watches(call.hooked, _IN), self.core.watches(call.hooked, _OUT)
        if inputs or outputs:
            met = tree.Unseen()
            received = [(path, x) for path, x in tree.arguments(args, kwargs, met) if x.requires_grad]
            if inputs:
                self._inputs.receive(call, received, _hidden(met))
            if outputs:
                bases = [tree.base(x) for _, x in received if not x.is_inference()]
                call.versions = {id(base): version(base) for base in bases}
        return None

    def returned(self, call: Call, args: Args, kwargs: Kwargs, output: object) -> object:
        """Hook the tensors that a module returned. Returns what its caller gets: the same, unless edits change it."""
        if self._edited:
            return self._edited.returned(call, args, kwargs, output)
        outputs = self.core.watches(call.hooked, _OUT)
        if call.received or outputs:
            among, within = tree.Unseen(), tree.Unseen()
            received = [x for _, x in tree.arguments(args, kwargs, among)]
            returned = list(tree.leaves(output, "", within))
            if call.received:
                self._inputs.returned(call, received + _hidden(among), [y for _, y in returned], _hidden(within))
            ids = {id(x) for x in received}
            for path, y in returned if outputs else ():
                before = call.versions.get(id(tree.base(y)))
                handed_on = id(y) in ids and (y.is_inference() or version(y) == before)
                if y.requires_grad and self.hooks.hookable(y, None if id(y) in ids else before):
                    self.hooks.hook(_OUT, call, path, y, handed_on=handed_on)
        return output

    def made(self, event: HookEvent, output: object, written: Collection[int]) -> None:
        """Hook the tensors that an operator returned; `written`: the ids of those that it has changed in place."""
        for path, y in tree.leaves(output):
            unchanged = y.is_inference() or id(y) in written
            if y.requires_grad and self.hooks.hookable(y, None if unchanged else version(y)):
                self.hooks.observe(replace(event, kind=_OUT, path=path), y)

    def leave(self, call: Call) -> None:
        self._inputs.leave(call)


def _hidden(unseen: tree.Unseen) -> list[Tensor]:
    return [*hidden_tensors(*(value for _, value in unseen))] if unseen else []
