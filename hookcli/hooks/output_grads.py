"""Gradients of module outputs, from plain tensor hooks that change nothing (design, rule 3).

The hook is on the very tensor that the module returned. It fires once, with the sum over all uses, and stays with that
value through later in-place changes. A module that returns a tensor which it received (Identity) returned that very
tensor: its row is the tensor's whole gradient. A view that is changed in place later loses its hook; the gradient is
then not told.

PyTorch makes the node of a view anew when it is first asked for after an in-place change. A hook asks, and the number
of that node decides in which order gradients are summed. In a run of the caller's a view is therefore hooked only where
its memory is known not to have changed since the view was made.

Edits of gradients alone put other tensors into the graph, since what they change must be this module's use only:
`view_as` for an input, and `Alias` for an output that another module returned, too, or that is a view.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle, unserializable_hook

from hookcli.errors import UsageError
from hookcli.hooks.calls import Call, Site
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import Alias, HookEvent
from hookcli.hooks.grad_arrivals import let_go
from hookcli.hooks.input_grads import InputUses, Version
from hookcli.hooks.kinds import HookKind
from hookcli.tensors import tree

if TYPE_CHECKING:
    from hookcli.hooks.session import HookSession

_IN, _OUT = HookKind.TENSOR_GRAD_INPUT, HookKind.TENSOR_GRAD_OUTPUT
_EDITS = {_IN: "grad_input", _OUT: "grad_output"}


class TensorGradHooks:
    """Puts tensor hooks on what passes through modules; `ModuleHooks` says when."""

    def __init__(self, session: HookSession) -> None:
        self._session = session
        self.handles: list[RemovableHandle] = []
        self._on_leaves: list[RemovableHandle] = []
        self._edited = any(edit.what in _EDITS.values() for edit in session.edits)
        self.uses = InputUses(session, self.keep, self.hookable)
        session.stack.callback(self._remove)

    def gone(self) -> bool:
        """Whether none of the hooked tensors' hooks can fire any more, but for leaves, which outlive their graphs."""
        return let_go(self.handles)

    def keep(self, handle: RemovableHandle, *, leaf: bool = False) -> None:
        """Remove this handle when the session ends."""
        (self._on_leaves if leaf else self.handles).append(handle)
        if len(self.handles) % 4096 == 0:  # a long session must not keep the handles of graphs that are gone
            self.handles = [h for h in self.handles if h.hooks_dict_ref() is not None]

    # What a module received.

    def receive(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Watch the tensors that a module receives. Returns what to call it with instead, where edits need that."""
        if self._edited:
            if self._watched(call.site, _IN) or "grad_input" in call.site.edits:
                return tree.replace_arguments(args, kwargs, partial(self._alias_input, call, {}), call.undo)
            return None
        if self._watched(call.site, _IN):
            self.uses.receive(call, args, kwargs)
        if self._watched(call.site, _OUT):
            bases = [tree.base(x) for _, x in tree.arguments(args, kwargs) if x.requires_grad and not x.is_inference()]
            call.versions = {id(base): base._version for base in bases}
        return None

    def _watched(self, site: Site, kind: HookKind) -> bool:
        return site.watched and self._session.wants(kind)

    def _alias_input(self, call: Call, made: dict[int, Tensor], path: str, x: Tensor) -> Tensor:
        """The tensor to hand to the module in place of `x`: the same one wherever `x` is among its arguments."""
        if not x.requires_grad:
            return x
        if id(x) not in made:
            made[id(x)] = self._aliased_input(call, path, x)
        return made[id(x)]

    def _aliased_input(self, call: Call, path: str, x: Tensor) -> Tensor:
        edits = call.site.edits.get("grad_input", [])
        if not getattr(call.site.module, "inplace", False):
            with self._session.nodes.ours():
                x = x.view_as(x) if x.layout is torch.strided else x  # sparse tensors have no views
        elif not x._is_view():
            return self._hook(_IN, call, path, x)
        elif edits:
            raise UsageError(
                f"--edit {edits[0].text!r}: {call.site.fqn or 'the model'} changes a view in place, whose gradient "
                "can't be edited; the module that makes the tensor has a grad_output that can"
            )
        else:  # a hook would be lost, and a copy would not be what the model computes with
            return x
        return self._hook(_IN, call, path, x)

    # What it returned.

    def returned(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Watch the tensors that a module returned. Returns what its caller gets: the same, unless edits change it."""
        if self._edited:
            if self._watched(call.site, _OUT) or self._watched(call.site, _IN) or self._edits(call.site):
                received = {id(x) for _, x in self._received(call, args, kwargs)}
                return tree.replace(output, partial(self._alias_output, call, received))
            return output
        self.uses.returned(call, args, kwargs, output)
        if self._watched(call.site, _OUT):
            received = {id(x) for _, x in tree.arguments(args, kwargs)}
            for path, y in tree.leaves(output):
                before = call.versions.get(id(tree.base(y)))
                handed_on = id(y) in received and (y.is_inference() or y._version == before)
                if y.requires_grad and self.hookable(y, None if id(y) in received else before):
                    self._hook(_OUT, call, path, y, handed_on=handed_on)
        return output

    def hookable(self, x: Tensor, before: int | None = None) -> bool:
        """Whether a hook on this tensor can't change the order of sums. `before`: its memory's version, before it was
        made."""
        if not (self._session.callers_run and x._is_view()) or x.is_inference():
            return True
        if x._version in (0, before):
            return True
        hooks: Iterable[Any] = (x._backward_hooks or {}).values()
        ours = [hook for hook in hooks if getattr(hook, "of", None) is self]
        return any(hook.version and not hook.version.changed() for hook in ours)

    def _edits(self, site: Site) -> bool:
        return not site.edits.keys().isdisjoint(_EDITS.values())

    def _received(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[str, Tensor]]:
        return () if getattr(call.site.module, "inplace", False) else tree.arguments(args, kwargs)

    def _alias_output(self, call: Call, received: set[int], path: str, y: Tensor) -> Tensor:
        """What the caller gets in place of `y`; hooks on inputs alone need outputs that are no views of them."""
        if not y.requires_grad:
            return y
        hooked = self._watched(call.site, _OUT) or "grad_output" in call.site.edits
        shared = hooked and (id(y) in received or y.is_leaf or y._backward_hooks)
        if shared or y._is_view():
            with self._session.nodes.ours():
                y = Alias.apply(y)
        return self._hook(_OUT, call, path, y) if hooked else y

    # Hooks on tensors.

    def _hook(self, kind: HookKind, call: Call, path: str, x: Tensor, *, handed_on: bool = False) -> Tensor:
        """Hook the tensor: edits in their order, then the watching probe. Ahead of other modules' hooks on it."""
        if not x.requires_grad:  # a view taken inside torch.func, of a tensor from outside
            return x
        edits = call.site.edits.get(_EDITS[kind], [])
        hooks: list[Any] = [partial(_edit, edit, call.site.fqn, call.number, path) for edit in edits]
        if self._watched(call.site, kind):
            event = HookEvent(
                kind,
                call.site.fqn,
                call.site.module,
                call.number,
                path=path,
                edited=", ".join(edit.op for edit in edits),
                handed_on=handed_on,
            )
            version = Version.of_view(x)
            hooks.append(self._session.safe(partial(self._arrive, event, version)))
            hooks[-1].version = version
        table = cast("dict[int, Any]", x._backward_hooks or {})
        earlier = [key for key, hook in table.items() if getattr(hook, "of", None) is self]
        for hook in hooks:
            hook.of = self
            # Marked as one that is not saved, so that a program which saves the tensor is not warned.
            self.keep(x.register_hook(unserializable_hook(hook)), leaf=x.is_leaf)
        for key in earlier:  # this gradient comes first: of an outer module, or of one that the tensor was given to
            table[key] = table.pop(key)  # PyTorch does not look at what `move_to_end` changes
        return x

    def _arrive(self, event: HookEvent, version: Version | None, grad: Tensor | None) -> None:
        if grad is None:  # an operator that has no gradient for this input, such as roi_align for its boxes
            return
        if version is None or not version.changed():
            self._session.emit_gradient(event, grad)

    def _remove(self) -> None:
        for handle in (*self.handles, *self._on_leaves):
            handle.remove()


def _edit(edit: Edit, fqn: str, call: int, path: str, grad: Tensor | None) -> Tensor | None:
    return None if grad is None else edit.at(fqn, call)(path, grad)
