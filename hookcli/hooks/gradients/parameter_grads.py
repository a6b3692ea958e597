"""Hooks on parameters: before and after a gradient is added to `.grad`, and when all of a module's have arrived."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.parameter import is_lazy

from hookcli.hooks.edits.base import matching_edits
from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.node_hooks import NodeHooks
from hookcli.hooks.parts import selects_parameter
from hookcli.hooks.session_core import HookGroup, SessionCore
from hookcli.hooks.torch_private.autograd import post_accumulate_grad_hooks
from hookcli.tensors.tree import is_dense


class ParameterHooks(HookGroup):
    """`tensor_grad_parameter`, `post_accumulate_grad` and `multi_grad`."""

    kinds = (HookKind.TENSOR_GRAD_PARAMETER, HookKind.POST_ACCUMULATE_GRAD, HookKind.MULTI_GRAD)

    def __init__(self, core: SessionCore, nodes: NodeHooks) -> None:
        super().__init__(core)
        self._nodes = nodes
        self.watched: dict[str, nn.Parameter] = {}
        self.hooked: set[str] = set()
        self.edited: dict[str, str] = {}
        self._modules: dict[str, nn.Module] = {}  # the program may remove one before its gradients arrive
        self._grouped = False

    def release(self) -> None:
        self.watched.clear()
        self._modules.clear()

    def start(self, kind: HookKind) -> None:
        self._modules = self._modules or dict(self.core.model.named_modules())
        for fqn, parameter in () if self.watched else self.core.model.named_parameters():
            if selects_parameter(self.core.select, self.core.model, fqn):
                self.watched[fqn] = parameter
                if parameter.requires_grad and not is_lazy(parameter):
                    self.hooked.add(fqn)
        if kind is HookKind.MULTI_GRAD:
            # Not earlier: with such a hook on leaves, autograd.grad inside the model's forward raises.
            self.core.before_backward(self._hook_groups)
            return
        for fqn in filter(self.hooked.__contains__, self.watched):
            # The closure must not hold the parameter: it would outlive even the garbage collector.
            parameter = self.watched[fqn]
            if kind is HookKind.POST_ACCUMULATE_GRAD:
                accumulated = partial(lambda name, p: self._emit(HookKind.POST_ACCUMULATE_GRAD, name, p.grad), fqn)
                handle = parameter.register_post_accumulate_grad_hook(accumulated)
                # To the front: a hook of the program's may step an optimizer and drop `.grad`.
                table = post_accumulate_grad_hooks(parameter) or {}
                for key in list(table)[:-1]:  # PyTorch does not look at what `move_to_end` changes
                    table[key] = table.pop(key)
            else:
                handle = parameter.register_hook(partial(self._arrive, fqn))
            self.core.stack.enter_context(handle)

    def edit(self) -> None:
        """Register the edits of parameters' gradients, before any hook that watches them."""
        for fqn, parameter in self.core.model.named_parameters() if self.core.edits else ():
            edits = matching_edits(self.core.edits, fqn).get("grad", [])
            if not (edits and parameter.requires_grad and not is_lazy(parameter)):
                continue
            self.edited[fqn] = ", ".join(edit.op for edit in edits)
            for edit in edits:
                self.core.stack.enter_context(parameter.register_hook(partial(edit.apply, fqn, 0, "")))

    def _hook_groups(self, roots: object) -> None:
        """Register a hook on the parameters of each module, and one on all; PyTorch takes no nested or sparse ones."""
        if self._grouped:
            return
        self._grouped = True
        whole = [self.watched[fqn] for fqn in self.watched if fqn in self.hooked]
        groups = {"": whole} if self.core.select is None else {}
        for fqn, module in self._modules.items():
            group = [p for n, p in module.named_parameters(fqn, recurse=False) if fqn and n in self.hooked]
            groups |= {fqn: group} if group else {}
        with self._nodes.ours():  # registering creates nodes
            for fqn, group in groups.items():
                tensors = [p for p in group if p.requires_grad and is_dense(p)]  # frozen by forward; refused
                if tensors:
                    self.core.stack.enter_context(register_multi_grad_hook(tensors, partial(self._all_there, fqn)))

    def _arrive(self, fqn: str, grad: Tensor | None) -> None:
        if grad is not None:
            self._emit(HookKind.TENSOR_GRAD_PARAMETER, fqn, grad)

    def _all_there(self, fqn: str, grads: list[Tensor | None]) -> None:
        index = self.core.next_arrival()
        self.core.emit(HookEvent(HookKind.MULTI_GRAD, fqn, self._modules[fqn], index=index, grad_inputs=tuple(grads)))

    def _emit(self, kind: HookKind, fqn: str, grad: Tensor | None) -> None:
        edited = self.edited.get(fqn, "")
        module = self._modules.get(fqn.rpartition(".")[0])
        self.core.emit(HookEvent(kind, fqn, module, index=self.core.next_arrival(), grad=grad, edited=edited))
