"""Gradients of module outputs and inputs, from plain tensor hooks that change nothing (design, rule 3).

An output is hooked as it is, unless a hook on it would be lost or would see too much: where it is a view (an in-place
operation on a view drops its hooks), is the module's input (Identity), or was hooked already as another module's output
(a container that returns its child's tensor would see the gradient of every consumer inside it), `Alias` gives autograd
another tensor over the same memory. Autograd then no longer knows that changing it in place changes what the module
received, which matters where a caller goes on with that. In a `faithful` session, of a program that must not differ
by a bit, such an output stays a view of the input, and its gradient is lost where it is changed in place.

An input is hooked through `view_as`, so that each consumer is told apart; a module with `inplace` gets the tensor
itself.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle, unserializable_hook
from torch.utils.weak import WeakTensorKeyDictionary

from hookcli import tree
from hookcli.edits import Edit
from hookcli.events import Alias, HookEvent, HookKind
from hookcli.hooks.reach import let_go
from hookcli.hooks.sites import Call, Site

if TYPE_CHECKING:
    from hookcli.hooks.session import HookSession

_IN, _OUT = HookKind.TENSOR_GRAD_INPUT, HookKind.TENSOR_GRAD_OUTPUT
_EDITS = {_IN: "grad_input", _OUT: "grad_output"}


class TensorGradHooks:
    """Puts tensor hooks on what passes through modules; `ModuleHooks` says when."""

    def __init__(self, session: HookSession) -> None:
        self._session = session
        self.handles: list[RemovableHandle] = []
        self._hooked_at: Any = WeakTensorKeyDictionary()  # output -> its version when it was hooked
        session.stack.callback(self._remove)

    def gone(self) -> bool:
        """Whether none of the hooked tensors' hooks can fire any more."""
        return let_go(self.handles)

    def watches_inputs(self, site: Site) -> bool:
        """Whether what the module received is hooked."""
        return (site.watched and self._session.wants(_IN)) or "grad_input" in site.edits

    def watches_outputs(self, site: Site) -> bool:
        """Whether what it returned is; hooks on inputs alone need outputs that are no views of them."""
        return (site.watched and self._session.wants(_IN, _OUT)) or not site.edits.keys().isdisjoint(_EDITS.values())

    def watch_input(self, call: Call, path: str, x: Tensor) -> Tensor:
        """The tensor to hand to the module in place of `x`."""
        if not x.requires_grad:
            return x
        with self._session.nodes.ours():
            if not getattr(call.site.module, "inplace", False):
                x = x.view_as(x) if x.layout is torch.strided else x  # sparse tensors have no views
            elif x._is_view():
                x = x.clone()
            else:
                return self._hook(_IN, call, path, x, first=True)
        return self._hook(_IN, call, path, x)

    def watch_outputs(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """What to hand to the module's caller in place of `output`."""
        inplace = getattr(call.site.module, "inplace", False)
        received = [] if inplace else [x for _, x in tree.arguments(args, kwargs)]
        if self._session.faithful:
            return tree.replace(output, partial(self._watch_faithfully, call, {id(tree.base(x)) for x in received}))
        return tree.replace(output, partial(self._watch_output, call, {id(x) for x in received}))

    def _watch_faithfully(self, call: Call, bases: set[int], path: str, y: Tensor) -> Tensor:
        """What the caller has, too, and may change through either, stays one and the same to autograd."""
        if not (y.is_leaf or id(tree.base(y)) in bases) or y.layout is not torch.strided:
            return self._watch_output(call, set(), path, y)
        if not (y.requires_grad and self._watched(call.site)):
            return y
        with self._session.nodes.ours():
            y = y.view_as(y)
        return self._hook(_OUT, call, path, y)

    def _watched(self, site: Site) -> bool:
        return (site.watched and self._session.wants(_OUT)) or "grad_output" in site.edits

    def _watch_output(self, call: Call, passed: set[int], path: str, y: Tensor) -> Tensor:
        if not y.requires_grad:
            return y
        watched = self._watched(call.site)
        shared = watched and (id(y) in passed or y.is_leaf or self._hooked_at.get(y) == y._version)
        if shared or y._is_view():
            with self._session.nodes.ours():
                y = Alias.apply(y)
        if not watched:
            return y
        self._hooked_at[y] = y._version
        return self._hook(_OUT, call, path, y)

    def _hook(self, kind: HookKind, call: Call, path: str, x: Tensor, *, first: bool = False) -> Tensor:
        """Hook the tensor: edits in their order, then the watching probe.

        `first`: before the hooks that are on it as another module's output, which its gradient reaches later.
        """
        if not x.requires_grad:  # a view taken inside torch.func, of a tensor from outside
            return x
        edits = call.site.edits.get(_EDITS[kind], [])
        handles = [x.register_hook(partial(_edit, edit, call.site.fqn, call.number, path)) for edit in edits]
        if call.site.watched and self._session.wants(kind):
            edited = ", ".join(edit.op for edit in edits)
            arrive = partial(self._arrive, kind, call.site, call.number, path, edited)
            quiet = unserializable_hook(self._session.safe(arrive))  # a program that saves the tensor is not warned
            handles.append(x.register_hook(quiet))
        if first and edits:
            table = cast("OrderedDict[int, Any]", x._backward_hooks)
            for handle in reversed(handles):
                table.move_to_end(handle.id, last=False)
        self.handles += handles
        if len(self.handles) % 4096 == 0:  # a long session must not keep the handles of graphs that are gone
            self.handles = [h for h in self.handles if h.hooks_dict_ref() is not None]
        return x

    def _arrive(self, kind: HookKind, site: Site, call: int, path: str, edited: str, grad: Tensor | None) -> None:
        if grad is not None:  # an operator that has no gradient for this input, such as roi_align for its boxes
            index = self._session.arrive()
            self._session.emit(HookEvent(kind, site.fqn, site.module, call, index, path=path, grad=grad, edited=edited))

    def _remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def _edit(edit: Edit, fqn: str, call: int, path: str, grad: Tensor | None) -> Tensor | None:
    return None if grad is None else edit.at(fqn, call)(path, grad)
