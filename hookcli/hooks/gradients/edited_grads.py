"""Edits of the gradients of modules' inputs and outputs.

Only these edits put other tensors into the graph, since they may change nothing but this module's use: `view_as` of an
input, and an `Alias` of an output that is a view, or that another module returned, too. In a session with such edits,
watched gradients come from the same tensors.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hookcli.errors import UsageError
from hookcli.hooks.gradients.tensor_hooks import TensorHooks
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.nodes.node_hooks import NodeHooks
from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.torch_private.autograd import tensor_hooks
from hookcli.tensors import tree
from hookcli.tensors.torch_private import is_view
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
