"""A session attaches hooks to a model while its `with` block runs; probes get `HookEvent`s.

After the block, also after an exception, no hook is left and every switch is as it was. The session composes the hook
groups, each in a file beside this one, and starts a group when a probe first asks for a kind of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer

from hookcli.hooks.backward import FullBackwardHooks
from hookcli.hooks.core import Safe, SessionCore
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import Callback
from hookcli.hooks.hook_group import HookGroup, Needs
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.modules import ModuleHooks
from hookcli.hooks.node_creation import NodeCreation
from hookcli.hooks.nodes import NodeHooks
from hookcli.hooks.optimizers import OptimizerHooks, StateDictHooks
from hookcli.hooks.parameters import ParameterHooks
from hookcli.hooks.registration import CreatedModule, noting_created_modules
from hookcli.hooks.saved_tensors import SavedTensorHooks
from hookcli.hooks.select import Select
from hookcli.hooks.tensor_grads import TensorGradHooks


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class HookSession(SessionCore):
    """Hooks on a model for the time of a `with` block.

    `select` narrows which modules are watched. `fastpath=False` switches the fused attention path off meanwhile.
    `globally` registers the hooks of modules and optimizers through PyTorch's global functions. `edits` change what
    flows, whether a probe looks at it or not. `follow`: nobody will tell of backward passes, so that the graph is
    taken to begin at what the model returns. `averaged`: over how many processes the gradients of parameters are
    averaged in the course of a backward pass. `safe` is laid around what is registered on modules and tensors: a script
    that is only looked at must not fail by it. `callers_run` (implied by `follow`): the gradients are the caller's, and
    may not differ in the order of their sums, either. `thread`: where not None, the one whose calls count.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        select: Select | None = None,
        fastpath: bool = True,
        globally: bool = False,
        edits: Sequence[Edit] = (),
        follow: bool = False,
        averaged: int = 1,
        safe: Safe = _as_it_is,
        callers_run: bool = False,
    ) -> None:
        super().__init__(
            model,
            select=select,
            fastpath=fastpath,
            globally=globally,
            edits=edits,
            follow=follow,
            safe=safe,
            callers_run=callers_run,
        )
        self.averaged = averaged
        self.passes = 0
        self.made: dict[str, list[CreatedModule]] = {}
        self.unregistered: list[Any] | None = None  # probes/unregistered.py
        self._after_backward: list[Callable[[], object]] = []
        creation = NodeCreation(self)
        self.nodes = NodeHooks(self, creation)
        self.tensor_grads = TensorGradHooks(self, self.nodes, creation)
        self.modules = ModuleHooks(self, self.nodes, self.tensor_grads)
        self.parameter_hooks = ParameterHooks(self, self.nodes)
        self.saved = SavedTensorHooks(self)
        self.full_backward = FullBackwardHooks(self, self.modules)
        self._optimizers = OptimizerHooks(self)
        groups: tuple[HookGroup, ...] = (
            self.nodes,
            self.tensor_grads,
            self.modules,
            self.parameter_hooks,
            self.saved,
            self.full_backward,
            self._optimizers,
            StateDictHooks(self),
        )
        self._groups = {kind: group for group in groups for kind in group.kinds}

    def __enter__(self) -> Self:
        if not self.fastpath:
            self.stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
        try:
            if any(edit.what != "grad" for edit in self.edits):
                self.modules.hook()
            self.parameter_hooks.edit()
        except BaseException:  # Python does not call __exit__ where __enter__ fails
            self.stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    def note_made(self) -> None:
        """Note in `made` which modules with parameters the model makes while it runs, by the module that makes them."""

        def note(made: CreatedModule) -> None:
            call = self.calls.innermost()
            self.made.setdefault(call.hooked.fqn if call else "", []).append(made)

        self.enter_context(noting_created_modules(self.model, note))

    # What a probe asks for. A callback gets one HookEvent and returns nothing.

    def on(self, kind: HookKind, callback: Callback) -> None:
        """Call back whenever a hook of this kind fires."""
        if not self.wants(kind):
            group = self._groups[kind]
            if group.needs is not Needs.NONE:
                self.modules.hook(everything=group.needs is Needs.EVERY)
            group.start(kind)
        self.subscribe(kind, callback)

    def forward_pre(self, callback: Callback) -> None:
        """Before each module's forward: `event.args`, `event.kwargs`."""
        self.on(HookKind.FORWARD_PRE, callback)

    def forward(self, callback: Callback) -> None:
        """After each module's forward: `event.output`, and `args` and `kwargs`, which may be overwritten by then."""
        self.on(HookKind.FORWARD, callback)

    def input_grad(self, callback: Callback) -> None:
        """The gradient of each tensor that a module received, by its use of it: `event.path`, `event.grad`."""
        self.on(HookKind.TENSOR_GRAD_INPUT, callback)

    def output_grad(self, callback: Callback) -> None:
        """The gradient of each tensor that a module returned: `event.path`, `event.grad`."""
        self.on(HookKind.TENSOR_GRAD_OUTPUT, callback)

    def post_accumulate_grad(self, callback: Callback) -> None:
        """After a parameter's `.grad` was added to; `event.grad` is `.grad`. Tied parameters fire once."""
        self.on(HookKind.POST_ACCUMULATE_GRAD, callback)

    def after_backward(self, callback: Callable[[], object]) -> None:
        """After each `backward()`, when the gradients of parameters are final; not after `torch.autograd.grad`."""
        self._after_backward.append(callback)

    # What a probe may ask about the run.

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The watched parameters."""
        return self.parameter_hooks.watched

    @property
    def hooked_parameters(self) -> set[str]:
        """Those of them that take a hook: not the frozen ones, nor lazy ones that have no size yet."""
        return self.parameter_hooks.hooked

    def never_called(self) -> dict[str, nn.Module]:
        """The watched modules whose forward no hook has seen."""
        return {site.fqn: site.module for site in self.modules.hooked.values() if site.watched and not site.calls}

    def ended_by_exceptions(self) -> dict[str, dict[int, str]]:
        """The calls of watched modules that an exception ended, and its type; "" for one that is no Exception."""
        return {site.fqn: site.raised for site in self.modules.hooked.values() if site.watched and site.raised}

    # What the run tells, and what the families need.

    def tell_backward_over(self) -> None:
        """The backward pass is over."""
        for callback in self._after_backward:
            callback()

    def tell_optimizer(self, optimizer: Optimizer) -> None:
        """This optimizer is about to be used."""
        self._optimizers.attach(optimizer)
