"""Gradients of modules' inputs and outputs, from plain tensor hooks that change nothing.

The hook on an output is on the very tensor that the module returned. It fires once, with the sum over all uses, and
stays with that value through later in-place changes. If a module returns a tensor that it received (Identity), the
event has the tensor's whole gradient. A view that is changed in place later loses its hook: there is no event then.
The hooks on inputs are in input_grads.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hookcli.errors import UsageError
from hookcli.hooks.events import HookEvent
from hookcli.hooks.gradients.input_grads import InputGrads
from hookcli.hooks.gradients.tensor_hooks import GRADIENT_EDITS, TensorHooks
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.node_hooks import NodeCreation, NodeHooks
from hookcli.hooks.session_core import HookGroup, Needs, SessionCore
from hookcli.hooks.torch_private.autograd import tensor_hooks
from hookcli.tensors import tree
from hookcli.tensors.containers import hidden_tensors
from hookcli.tensors.torch_private import is_view, version
from hookcli.tensors.tree import Args, Kwargs

_IN, _OUT = HookKind.TENSOR_GRAD_INPUT, HookKind.TENSOR_GRAD_OUTPUT


class EditedGrads:
    """Replaces inputs and outputs by aliases, with hooks that edit and show their gradients."""

    def __init__(self, core: SessionCore, nodes: NodeHooks, hooks: TensorHooks) -> None:
        self._core = core
        self._nodes = nodes
        self._hooks = hooks

    def receive(self, call: Call, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Return the arguments to call the module with; None to leave them."""
        if self._core.watches(call.hooked, _IN) or "grad_input" in call.hooked.edits:
            return tree.replace_arguments(args, kwargs, tree.once(partial(self._alias_input, call)), call.undo)
        return None

    def _alias_input(self, call: Call, path: str, x: Tensor) -> Tensor:
        """Return the tensor that the module gets in place of `x`."""
        if not x.requires_grad:
            return x
        edits = call.hooked.edits.get("grad_input", [])
        if not getattr(call.hooked.module, "inplace", False):
            with self._nodes.ours():
                x = x.view_as(x) if tree.is_dense(x) else x  # others have no views
        elif is_view(x):
            if not edits:  # a hook would be lost, and a copy would not be what the model computes with
                return x
            raise UsageError(
                f"--edit {edits[0].text!r}: {call.hooked.fqn or 'the model'} changes a view in place, whose gradient "
                "can't be edited; the module that makes the tensor has a grad_output that can"
            )
        return self._hooks.hook(_IN, call, path, x)

    def returned(self, call: Call, args: Args, kwargs: Kwargs, output: object) -> object:
        """Return what the module's caller gets."""
        hooked = self._core.watches(call.hooked, _OUT) or "grad_output" in call.hooked.edits
        if not (hooked or self._core.watches(call.hooked, _IN) or "grad_input" in call.hooked.edits):
            return output
        inplace = getattr(call.hooked.module, "inplace", False)
        received = set() if inplace else {id(x) for _, x in tree.arguments(args, kwargs)}
        return tree.replace(output, partial(self._alias_output, call, received, hooked))

    def _alias_output(self, call: Call, received: set[int], hooked: bool, path: str, y: Tensor) -> Tensor:
        """Return what the caller gets in place of `y`. Hooks on inputs need outputs that are not views of them."""
        if not y.requires_grad:
            return y
        shared = hooked and (id(y) in received or y.is_leaf or tensor_hooks(y))
        if shared or is_view(y):
            with self._nodes.ours():
                y = Alias.apply(y)
        return self._hooks.hook(_OUT, call, path, y) if hooked else y


class Alias(torch.autograd.Function):
    """A tensor with the memory and version counter of another, which for autograd is neither a view nor a copy."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return the tensor, detached; autograd makes it an output of this function."""
        return x.detach()

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save nothing: the gradient passes through unchanged."""

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


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
            received = tree.received(args, kwargs, among)
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
