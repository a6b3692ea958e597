"""Hooks on the tensors that pass through modules, which change neither the tensors nor the graph.

After an in-place change, PyTorch creates a new node for a view when something first asks for it. Registering a hook
asks, and the node's number decides the order in which gradients are summed. In the caller's own run, a view is
therefore hooked only if its memory is known to be unchanged since the view was created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from torch import Tensor
from torch.utils.hooks import RemovableHandle, unserializable_hook

from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call
from hookcli.hooks.session_core import SessionCore
from hookcli.hooks.tensor_origins import TensorVersion
from hookcli.hooks.torch_private.autograd import tensor_hooks
from hookcli.tensors import tree
from hookcli.tensors.torch_private import is_view, version

GRADIENT_EDITS = {HookKind.TENSOR_GRAD_INPUT: "grad_input", HookKind.TENSOR_GRAD_OUTPUT: "grad_output"}


_Hook = Callable[[Tensor | None], object]


class TensorHooks:
    """Registers hooks on tensors, and removes them when the session ends."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self.handles: list[RemovableHandle] = []
        self._on_leaves: list[RemovableHandle] = []
        core.stack.callback(self._remove)

    def gone(self) -> bool:
        """Return whether no hook can fire any more, except hooks on leaves, which outlive their graphs."""
        return all(handle.hooks_dict_ref() is None for handle in self.handles)

    def keep(self, handle: RemovableHandle, *, leaf: bool = False) -> None:
        """Remove this hook when the session ends."""
        (self._on_leaves if leaf else self.handles).append(handle)
        if len(self.handles) % 4096 == 0:  # a long session must not keep the handles of graphs that are gone
            self.handles = [h for h in self.handles if h.hooks_dict_ref() is not None]

    def hookable(self, x: Tensor, before: int | None = None) -> bool:
        """Return whether a hook on this tensor leaves the order of sums as it is.

        `before`: the version that the tensor's memory had when the call began.
        """
        if not (self._core.callers_run and is_view(x)) or x.is_inference():
            return True
        if version(x) in (0, before):
            return True
        hooks: Iterable[Any] = (tensor_hooks(x) or {}).values()
        ours = [hook for hook in hooks if getattr(hook, "of", None) is self]
        return any(hook.version and not hook.version.changed() for hook in ours)

    def hook(self, kind: HookKind, call: Call, path: str, x: Tensor, *, handed_on: bool = False) -> Tensor:
        """Hook the tensor: edits in their order, then the probes' event; all ahead of other modules' hooks on it."""
        if not x.requires_grad:  # a view, taken inside torch.func, of a tensor from outside
            return x
        edits = call.hooked.edits.get(GRADIENT_EDITS[kind], [])
        hooks: list[_Hook] = [partial(_edit, edit, call.hooked.fqn, call.number, path) for edit in edits]
        if self._core.watches(call.hooked, kind):
            event = HookEvent(kind, call.hooked.fqn, call.hooked.module, call.number, path=path, handed_on=handed_on)
            event.edited = ", ".join(edit.op for edit in edits)
            hooks.append(self._arrival(event, x))
        self._register(hooks, x)
        return x

    def observe(self, event: HookEvent, x: Tensor) -> None:
        """Hook the tensor at the event's path, which an operator returned: the event is emitted with its gradient."""
        if x.requires_grad:
            self._register([self._arrival(event, x)], x)

    def _arrival(self, event: HookEvent, x: Tensor) -> _Hook:
        # Of a tensor that is not a view, the hooks stay with its value.
        version = TensorVersion(x) if is_view(x) and not x.is_inference() else None
        hook: Any = self._core.guarded(partial(self._arrive, event, version))
        hook.version = version
        return cast(_Hook, hook)

    def _register(self, hooks: Iterable[Any], x: Tensor) -> None:
        table = tensor_hooks(x) or {}
        earlier = [key for key, hook in table.items() if getattr(hook, "of", None) is self]
        for hook in hooks:
            hook.of = self
            _ = x.grad_fn  # PyTorch 2.11 crashes if the hook is the first to ask a changed view for its new node
            # Marked as unserializable, so that PyTorch does not warn a program that saves the tensor.
            self.keep(x.register_hook(unserializable_hook(hook)), leaf=x.is_leaf)
        for key in earlier:  # an outer or later module's gradient comes first
            table[key] = table.pop(key)  # PyTorch does not look at what `move_to_end` changes

    def _arrive(self, event: HookEvent, version: TensorVersion | None, grad: Tensor | None) -> None:
        if grad is None:  # an operator without a gradient for this input, as roi_align for its boxes
            return
        if version is None or not version.changed():
            self._core.emit_gradient(event, grad)

    def _remove(self) -> None:
        for handle in (*self.handles, *self._on_leaves):
            handle.remove()


def _edit(edit: Edit, fqn: str, call: int, path: str, grad: Tensor | None) -> Tensor | None:
    return None if grad is None else edit.apply(fqn, call, path, grad)


class GradArrivals:
    """Hooks on a model's outputs. `times` counts the gradients that arrived at them."""

    def __init__(self) -> None:
        self.times = 0
        self._handles: list[RemovableHandle] = []

    def __bool__(self) -> bool:
        return bool(self._handles)

    def watch(self, output: object) -> None:
        """Hook the tensors of an output that have a graph, except views, whose hooks in-place operations drop."""
        for _, y in tree.leaves(output):
            if y.requires_grad and not y.is_leaf and not is_view(y):
                arrive = unserializable_hook(partial(self._arrive))  # marked, which a bound method can't be
                self._handles.append(y.register_hook(arrive))

    def gone(self) -> bool:
        return all(handle.hooks_dict_ref() is None for handle in self._handles)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _arrive(self, _: Tensor | None) -> None:
        self.times += 1
