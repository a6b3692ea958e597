"""A session attaches hooks to a model while its `with` block runs; probes get `HookEvent`s.

After the block, also after an exception, no hook is left and every switch is as it was. The session composes the hook
groups, each in a file beside this one, and starts a group when a probe first asks for a kind of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Self

import torch
from torch import nn

from hookcli.errors import UsageError
from hookcli.hooks.events import Callback
from hookcli.hooks.full_backward import FullBackwardHooks
from hookcli.hooks.gradients.parameter_grads import ParameterHooks
from hookcli.hooks.gradients.tensor_grads import TensorGradHooks
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call, HookedModule
from hookcli.hooks.modules import ModuleHooks
from hookcli.hooks.node_hooks import NodeCreation, NodeHooks
from hookcli.hooks.observing_mode import ObservingMode
from hookcli.hooks.operators.calls import LOSS, AtenCalls, Change, LossFunction, NamedFunctions, OperatorCalls
from hookcli.hooks.outside_runs import CreatedModule, OptimizerHooks, StateDictHooks, noting_created_modules
from hookcli.hooks.saved_tensors import SavedTensorHooks
from hookcli.hooks.session_core import HookGroup, Needs, Roots, SessionCore
from hookcli.hooks.torch_private.dynamo import frames_compiled, not_imported_by_operators
from hookcli.hooks.torch_private.overrides import (
    function_modes_can_move,
    move_function_mode_below,
    stopped_by_backward,
)


class HookSession(SessionCore):
    """Hooks on a model, for the time of a `with` block.

    `select`: which modules to watch.
    `fastpath=False`: switch PyTorch's fused attention path off meanwhile.
    `globally`: register the hooks of modules and optimizers through PyTorch's global functions.
    `edits`: changes to what flows through the model, whether a probe watches it or not.
    `follow`: the caller runs backward; the model's outputs are taken as the graph's roots.
    `callers_run` (implied by `follow`): the gradients are the caller's, so not even the order of their sums may change.
    `discard_saved`: nothing runs backward, so that tensors saved for it need not be kept (except on the meta device,
    where they take no memory).
    `ops`: also emit events for operators: "functions" (PyTorch's, as the program calls them) or "aten".
    `inside_compiled`: compiled parts run compiled, and their modules are seen inside; see `own_programs`.
    `processes`: how many processes average the gradients of parameters in the course of backward.
    `guard`: wraps every callback that is registered on modules and tensors; it keeps the errors of hookcli's own
    callbacks out of a program that hookcli only observes.

    Raises UsageError where the model itself is TorchScript.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pass_number, self._passes = 0, 1
        self.batch_number = 0
        self._batches: int | None = 1
        self._in_backward = False
        self._operators_attached = False
        self._losses = 0  # loss functions that were watched
        self._operators: OperatorCalls | AtenCalls | None = None
        self._named: NamedFunctions | None = None
        self._modes: list[AbstractContextManager[object]] = []
        self._operators_on = ExitStack()
        self.created_modules: dict[str, list[CreatedModule]] = {}
        self._after_backward: list[Callable[[], object]] = []
        creation = NodeCreation(self)
        self.nodes = NodeHooks(self, creation)
        self.tensor_grads = TensorGradHooks(self, self.nodes, creation)
        self.modules = ModuleHooks(self, self.nodes, self.tensor_grads)
        self.parameter_hooks = ParameterHooks(self, self.nodes)
        self.parameters = self.parameter_hooks.watched
        self.hooked_parameters = self.parameter_hooks.hooked
        self.saved_tensors = SavedTensorHooks(self)
        self.full_backward = FullBackwardHooks(self, self.modules)
        self.optimizers = OptimizerHooks(self)
        groups = [StateDictHooks(self), *(group for group in vars(self).values() if isinstance(group, HookGroup))]
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

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def release(self) -> None:
        """Forget the model and all callbacks, after the block and the last question.

        The groups and the session refer to each other, so the model would live until the next garbage collection.
        """
        self.model, self.select = nn.Identity(), None
        for group in {id(group): group for group in self._groups.values()}.values():
            group.release()
        self._callbacks = {kind: [] for kind in HookKind}
        self._of_operators = {kind: [] for kind in HookKind}
        self._before_backward, self._after_backward = [], []

    # For the run that the session observes.

    def begin_batch(self, number: int, batches: int | None) -> None:
        """Number the batch that begins, where a run has several: calls and gradients are counted anew."""
        self.batch_number, self._batches, self.arrived = number, batches, 0
        self.calls.begin_batch()
        for edit in self.edits:
            edit.numbers["batch"] = number
        for hooked in self.modules.hooked.values():
            hooked.begin_batch()

    def begin_pass(self, number: int, passes: int = 1) -> None:
        """Number the pass that begins, where a run makes several over the model."""
        self.pass_number, self._passes = number, passes
        self._in_backward = False
        for edit in self.edits:
            edit.numbers["pass"] = number

    def backward_begins(self, roots: Roots) -> None:
        self._in_backward = True
        super().backward_begins(roots)

    def position(self) -> str:
        """Say how far the run is, for people: the innermost module that runs, and how many of all have run.

        Any thread may call it: it reads what hooks note anyway, and takes copies.
        """
        parts = [f"batch {self.batch_number + 1} of {self._batches or '?'}"] if self._batches != 1 else []
        parts += [f"pass {self.pass_number + 1} of {self._passes}"] if self._passes > 1 else []
        parts += [call.hooked.fqn or "(model)" for call in self.calls.running[-1:]]
        if self._in_backward:
            parts.append(f"backward ({self.arrived} gradients)" if self.arrived else "backward")
        else:
            modules = [*self.modules.hooked.values()]
            parts.append(f"{sum(bool(hooked.calls) for hooked in modules)} of {len(modules)} modules")
        return ", ".join(parts)

    def note_created_modules(self) -> None:
        """Note, from now on, the modules with parameters that the forward creates, by the fqn of its module."""

        def note(created: CreatedModule) -> None:
            call = self.calls.innermost()
            self.created_modules.setdefault(call.hooked.fqn if call else "", []).append(created)

        self.stack.enter_context(noting_created_modules(self.model, note))

    def backward_ended(self) -> None:
        """Call the callbacks of `after_backward`: the backward pass is over."""
        for callback in self._after_backward:
            callback()

    # For probes: what to observe. A callback gets one HookEvent and returns nothing.

    def on(self, kind: HookKind, callback: Callback) -> None:
        """Call back whenever a hook of this kind fires."""
        if not self.wants(kind):
            group = self._groups[kind]
            if group.needs is not Needs.NOTHING:
                self.modules.hook(everything=group.needs is Needs.EVERY_CALL)
            group.start(kind)
            self.modules.ask(kind)
        if kind in OperatorCalls.kinds:
            self._watch_operators(kind)
        self.subscribe(kind, callback)

    def on_operators(self, kind: HookKind, callback: Callback) -> None:
        """Call back only with the events of operators; never without `ops`."""
        self._watch_operators(kind)
        self.subscribe(kind, callback, modules=False)

    def _watch_operators(self, kind: HookKind) -> None:
        if not self.ops or not self.operators_too:
            return
        if self.ops == "aten" and kind is HookKind.TENSOR_GRAD_OUTPUT:
            raise UsageError("--ops aten: ATen's operators run below autograd and have no gradients; --ops shows them")
        if self._operators is None:
            self.modules.hook(everything=True)  # operators are named by the module that runs
            if self.ops == "aten":
                self.stack.enter_context(not_imported_by_operators())
            self._operators = (AtenCalls if self.ops == "aten" else OperatorCalls)(self, self.tensor_grads)
            self.watch_functions(self._operators)

    def watch_functions(self, mode: AbstractContextManager[object]) -> None:
        """Run this mode in this thread while forwards run: until `detach_operators`, and after `attach_operators`."""
        self.detach_operators()
        self._modes.append(mode)
        self.stack.callback(self.detach_operators)
        self.attach_operators()

    def functions(self, callback: Callback, *names: str) -> None:
        """Call back after each call of PyTorch's functions of these names: "softmax" is `F.softmax`, `x.softmax()` ...

        Events have the running module's `fqn`, `module`, `call`, `index`, and `operator`, `args`, `kwargs`, `output`;
        also of layers of torch.nn, not of compiled code and in backward.
        """
        for name in names:
            self._watch_named().callbacks[name].append(self.wrap_callback(callback))

    def change_functions(self, change: Change, *names: str) -> None:
        """Put what `change` returns for the event of each such call in place of its output; events as in `functions`.

        It may return the output itself. Its errors are the run's.
        """
        for name in names:
            self._watch_named().changes[name].append(change)

    def _watch_named(self) -> NamedFunctions:
        self.modules.hook(everything=True)  # a call is named by the module that runs
        if self._named is None:
            self._named = NamedFunctions(self)
            self.watch_functions(self._named)
        return self._named

    def attach_operators(self) -> None:
        """Watch operators in this thread from now on, if a probe asked for them; again after `detach_operators`."""
        if not self._operators_attached:
            self._operators_attached = True
            for mode in self._modes:
                self._operators_on.enter_context(mode)

    def watch_loss(self) -> None:
        """Go on in the loss function with the modes that are for it: in this thread, until a backward pass begins.

        Does nothing where torch.compile is at work, which would compile functions again for a mode.
        """
        modes = [mode for mode in self._modes if isinstance(mode, ObservingMode) and mode.in_loss]
        if modes and function_modes_can_move() and not frames_compiled():
            self.detach_operators()
            number, self._losses = self._losses, self._losses + 1
            self.loss_call = Call(HookedModule(LOSS, LossFunction()), number, self.calls.next_index(), again=False)
            for mode in modes:
                self._operators_on.enter_context(mode)
                move_function_mode_below(mode)
            self._operators_on.enter_context(stopped_by_backward(self.stop_loss))

    def stop_loss(self) -> None:
        """Watch the loss function no longer, if it is watched in this thread."""
        if self.loss_call is not None and self.loss_call.thread == threading.get_ident():
            self.detach_operators()

    def detach_operators(self) -> None:
        """Watch operators no longer. To be called in the thread that attached them."""
        self._operators_attached = False
        self.loss_call = None
        self._operators_on.close()

    def forward_pre(self, callback: Callback) -> None:
        """Call back before each module's forward, with `event.args` and `event.kwargs`."""
        self.on(HookKind.FORWARD_PRE, callback)

    def forward(self, callback: Callback) -> None:
        """Call back after each module's forward, with `event.output`; it may have changed `args` and `kwargs`."""
        self.on(HookKind.FORWARD, callback)

    def input_grad(self, callback: Callback) -> None:
        """Call back with the gradient of each tensor that a module received, from its use there: `path`, `grad`."""
        self.on(HookKind.TENSOR_GRAD_INPUT, callback)

    def output_grad(self, callback: Callback) -> None:
        """Call back with the gradient of each tensor that a module returned: `event.path`, `event.grad`."""
        self.on(HookKind.TENSOR_GRAD_OUTPUT, callback)

    def post_accumulate_grad(self, callback: Callback) -> None:
        """Call back after a parameter's `.grad` was added to; `event.grad` is `.grad`. Tied parameters fire once."""
        self.on(HookKind.POST_ACCUMULATE_GRAD, callback)

    def after_backward(self, callback: Callable[[], object]) -> None:
        """Call back after each `backward()`, when the parameters' gradients are final; not after `autograd.grad`."""
        self._after_backward.append(callback)

    # For probes: questions about the run.

    def never_called(self) -> dict[str, nn.Module]:
        """The watched modules that were never called, as far as hooks have seen."""
        return {h.fqn: h.module for h in self.modules.hooked.values() if h.watched and not (h.calls or h.earlier)}

    def ended_by_exceptions(self) -> dict[str, dict[int, str]]:
        """The calls of watched modules that raised, with the exception's type.

        The type is "" for a BaseException such as KeyboardInterrupt.
        """
        return {h.fqn: h.raised for h in self.modules.hooked.values() if h.watched and h.raised}
