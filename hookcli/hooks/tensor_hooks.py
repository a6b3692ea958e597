"""Hooks on the tensors that pass through modules, which change neither the tensors nor the graph (design, rule 3).

PyTorch makes the node of a view anew when it is first asked for after an in-place change. A hook asks, and the number
of that node decides in which order gradients are summed. In a run of the caller's a view is therefore hooked only where
its memory is known not to have changed since the view was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from torch import Tensor
from torch.utils.hooks import RemovableHandle, unserializable_hook

from hookcli.hooks.calls import Call
from hookcli.hooks.core import SessionCore
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import HookEvent
from hookcli.hooks.grad_arrivals import all_gone
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.received import TensorVersion

GRADIENT_EDITS = {HookKind.TENSOR_GRAD_INPUT: "grad_input", HookKind.TENSOR_GRAD_OUTPUT: "grad_output"}


class TensorHooks:
    """Puts hooks on tensors, and takes them off when the session ends."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self.handles: list[RemovableHandle] = []
        self._on_leaves: list[RemovableHandle] = []
        core.stack.callback(self._remove)

    def gone(self) -> bool:
        """Whether none of the hooked tensors' hooks can fire any more, but for leaves, which outlive their graphs."""
        return all_gone(self.handles)

    def keep(self, handle: RemovableHandle, *, leaf: bool = False) -> None:
        """Remove this handle when the session ends."""
        (self._on_leaves if leaf else self.handles).append(handle)
        if len(self.handles) % 4096 == 0:  # a long session must not keep the handles of graphs that are gone
            self.handles = [h for h in self.handles if h.hooks_dict_ref() is not None]

    def hookable(self, x: Tensor, before: int | None = None) -> bool:
        """Whether a hook on this tensor can't change the order of sums. `before`: its memory's version, before it was
        made."""
        if not (self._core.callers_run and x._is_view()) or x.is_inference():
            return True
        if x._version in (0, before):
            return True
        hooks: Iterable[Any] = (x._backward_hooks or {}).values()
        ours = [hook for hook in hooks if getattr(hook, "of", None) is self]
        return any(hook.version and not hook.version.changed() for hook in ours)

    def hook(self, kind: HookKind, call: Call, path: str, x: Tensor, *, handed_on: bool = False) -> Tensor:
        """Hook the tensor: edits in their order, then the watching probe. Ahead of other modules' hooks on it."""
        if not x.requires_grad:  # a view taken inside torch.func, of a tensor from outside
            return x
        edits = call.hooked.edits.get(GRADIENT_EDITS[kind], [])
        hooks: list[Any] = [partial(_edit, edit, call.hooked.fqn, call.number, path) for edit in edits]
        if self._core.watches(call.hooked, kind):
            event = HookEvent(
                kind,
                call.hooked.fqn,
                call.hooked.module,
                call.number,
                path=path,
                edited=", ".join(edit.op for edit in edits),
                handed_on=handed_on,
            )
            version = TensorVersion.of_view(x)
            hooks.append(self._core.guard(partial(self._arrive, event, version)))
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

    def _arrive(self, event: HookEvent, version: TensorVersion | None, grad: Tensor | None) -> None:
        if grad is None:  # an operator that has no gradient for this input, such as roi_align for its boxes
            return
        if version is None or not version.changed():
            self._core.emit_gradient(event, grad)

    def _remove(self) -> None:
        for handle in (*self.handles, *self._on_leaves):
            handle.remove()


def _edit(edit: Edit, fqn: str, call: int, path: str, grad: Tensor | None) -> Tensor | None:
    return None if grad is None else edit.at(fqn, call)(path, grad)
