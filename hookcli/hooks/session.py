"""A session attaches hooks to a model while its `with` block runs; probes get `HookEvent`s.

After the block, also after an exception, no hook is left and every switch is as it was. Each family of hooks has a file
beside this one; the session starts a family when a probe first asks for a kind of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from hookcli.errors import HookcliError, PluginError, in_brief
from hookcli.hooks.backward import FullBackwardHooks
from hookcli.hooks.calls import Call
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import Callback, HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.modules import ModuleHooks, compiled_parts, unhooked_parts
from hookcli.hooks.nodes import NodeHooks
from hookcli.hooks.optimizers import OptimizerHooks, StateDictHooks
from hookcli.hooks.parameters import ParameterHooks
from hookcli.hooks.registration import MadeModule, made_meanwhile
from hookcli.hooks.saved_tensors import SavedTensorHooks
from hookcli.hooks.signals import of_a_signal

if TYPE_CHECKING:
    from torch.optim import Optimizer

T = TypeVar("T")
Select = Callable[[str, nn.Module], bool]
Roots = Sequence[Tensor]
Safe = Callable[[Callable[..., Any]], Callable[..., Any]]


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class HookSession:
    """Hooks on a model for the time of a `with` block.

    `select` narrows which modules are watched. `fastpath=False` switches the fused attention path off meanwhile.
    `globally` registers the hooks of modules and optimizers through PyTorch's global functions. `edits` change what
    flows, whether a probe looks at it or not. `follow`: nobody will tell of backward passes, so that the graph is
    taken to begin at what the model returns. `averaged`: over how many processes the gradients of parameters are
    averaged in the course of a backward pass. `safe` is laid around what is registered on modules and tensors: a script
    that is only looked at must not fail by it. `callers_run` (implied by `follow`): the gradients are the caller's, and
    may not differ in the order of their sums, either. `thread`: where not None, the one whose calls count. `aside`:
    gradients that arrive now are none of the loss's. `unhooked`: the parts that take no hooks, with the reason:
    TorchScript, and with `follow` what is compiled, which would be compiled again with the hooks in it. Raises
    UsageError where the model itself is TorchScript.
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
        self.unhooked = unhooked_parts(model) | (compiled_parts(model) if follow else {})
        self.model = model
        self.follow = follow
        self.averaged = averaged
        self.safe = safe
        self.callers_run = callers_run or follow
        self.aside = False
        self.thread: int | None = None
        self.select = select
        self.fastpath = fastpath
        self.globally = globally
        self.edits = edits
        self.stack = ExitStack()
        self.passes = 0
        self.arrived = 0
        self.made: dict[str, list[MadeModule]] = {}
        self.unregistered: list[Any] | None = None  # probes/unregistered.py
        self._callbacks: dict[HookKind, list[Callback]] = {kind: [] for kind in HookKind}
        self._before_backward: list[Callable[[Roots], object]] = []
        self._after_backward: list[Callable[[], object]] = []
        self.modules = ModuleHooks(self)
        self.parameter_hooks = ParameterHooks(self)
        self.nodes = NodeHooks(self)
        self._optimizers = OptimizerHooks(self)
        self.saved = SavedTensorHooks(self)
        self.full_backward = FullBackwardHooks(self)
        families = (
            self.modules,
            self.parameter_hooks,
            self.nodes,
            self._optimizers,
            self.full_backward,
            self.saved,
            StateDictHooks(self),
        )
        self._family = {kind: family for family in families for kind in family.kinds}

    def __enter__(self) -> Self:
        if not self.fastpath:
            self.stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
        try:
            if any(edit.what != "grad" for edit in self.edits):
                self.modules.start()
            self.parameter_hooks.edit()
        except BaseException:  # Python does not call __exit__ where __enter__ fails
            self.stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    def enter_context(self, context: AbstractContextManager[T]) -> T:
        """Enter a context, such as a dispatch mode, that ends with the session."""
        return self.stack.enter_context(context)

    def note_made(self) -> None:
        """Note in `made` which modules with parameters the model makes while it runs, by the module that makes them."""

        def note(made: MadeModule) -> None:
            call = self.running()
            self.made.setdefault(call.site.fqn if call else "", []).append(made)

        self.enter_context(made_meanwhile(self.model, note))

    # What a probe asks for. A callback gets one HookEvent and returns nothing.

    def on(self, kind: HookKind, callback: Callback) -> None:
        """Call back whenever a hook of this kind fires."""
        self._family[kind].want(kind)
        self._callbacks[kind].append(callback)

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

    def before_backward(self, callback: Callable[[Roots], object]) -> None:
        """Once the graph stands, before each backward pass: `callback(roots)` gets what is differentiated."""
        self._before_backward.append(callback)

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
        return {site.fqn: site.module for site in self.modules.sites.values() if site.watched and not site.calls}

    def ended_by_exceptions(self) -> dict[str, dict[int, str]]:
        """The calls of watched modules that an exception ended, and its type; "" for one that is no Exception."""
        return {site.fqn: site.raised for site in self.modules.sites.values() if site.watched and site.raised}

    # What the run tells, and what the families need.

    def tell_backward(self, roots: Roots) -> None:
        """A backward pass from these tensors is about to begin."""
        for callback in self._before_backward:
            callback(roots)

    def tell_backward_over(self) -> None:
        """The backward pass is over."""
        for callback in self._after_backward:
            callback()

    def tell_optimizer(self, optimizer: Optimizer) -> None:
        """This optimizer is about to be used."""
        self._optimizers.attach(optimizer)

    def wants(self, *kinds: HookKind) -> bool:
        """Whether a probe asked for one of them."""
        return any(self._callbacks[kind] for kind in kinds)

    def selected(self) -> Iterable[tuple[str, nn.Module]]:
        """The modules that are watched."""
        return ((n, m) for n, m in self._asked() if n not in self.unhooked)

    def _asked(self) -> Iterable[tuple[str, nn.Module]]:
        return ((n, m) for n, m in self.model.named_modules() if self.select is None or self.select(n, m))

    def not_hooked(self) -> dict[str, str]:
        """The modules that were asked for and take no hooks, with the reason."""
        return {fqn: self.unhooked[fqn] for fqn, _ in self._asked() if fqn in self.unhooked} if self.unhooked else {}

    def running(self) -> Call | None:
        """The innermost call that is under way."""
        return self.modules.running[-1] if self.modules.running else None

    def caller(self) -> Call | None:
        """The call around it: its own code runs the innermost one."""
        return self.modules.running[-2] if self.modules.running[1:] else None

    def arrive(self) -> int:
        """The next number in the order in which gradients arrive."""
        self.arrived += 1
        return self.arrived - 1

    def emit_gradient(self, event: HookEvent, grad: Tensor) -> None:
        """Hand on a gradient that has arrived. While a module's forward runs it is of what the model differentiates."""
        inner = self.aside or bool(self.modules.running)
        self.emit(replace(event, grad=grad, inner=inner, index=self.arrived if inner else self.arrive()))

    def emit(self, event: HookEvent) -> None:
        """Hand an event to those who asked for its kind; their errors are theirs, not the model's."""
        for callback in self._callbacks[event.kind]:
            try:
                callback(event)
            except HookcliError:
                raise
            except Exception as error:
                if of_a_signal(error):
                    raise
                owner = type(getattr(callback, "__self__", callback)).__name__
                raise PluginError(f"{owner} failed at {event.fqn or 'the model'}: {in_brief(error)}") from error
