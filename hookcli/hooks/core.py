"""The core of a session: the model, what is watched of it, the calls under way, and the way to the callbacks.

Every hook group gets the core; the session (session.py) is the core with all groups on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from hookcli.errors import HookcliError, PluginError, in_brief
from hookcli.hooks.calls import CallStack, HookedModule
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import Callback, HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.select import Select
from hookcli.hooks.signals import raised_by_signal_handler
from hookcli.hooks.unhooked import compiled_parts, scripted_parts

T = TypeVar("T")
Roots = Sequence[Tensor]
Safe = Callable[[Callable[..., Any]], Callable[..., Any]]


class SessionCore:
    """What the hook groups of a session share; `HookSession` says what the arguments are.

    `unhooked`: the parts that take no hooks, with the reason: TorchScript, and with `follow` what is compiled, which
    would be compiled again with the hooks in it. `aside`: gradients that arrive now are none of the loss's. `arrived`
    counts the gradients that have arrived. Raises UsageError where the model itself is TorchScript.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        select: Select | None,
        fastpath: bool,
        globally: bool,
        edits: Sequence[Edit],
        follow: bool,
        safe: Safe,
        callers_run: bool,
    ) -> None:
        self.unhooked = scripted_parts(model) | (compiled_parts(model) if follow else {})
        self.model = model
        self.select = select
        self.fastpath = fastpath
        self.globally = globally
        self.edits = edits
        self.follow = follow
        self.safe = safe
        self.callers_run = callers_run or follow
        self.stack = ExitStack()
        self.calls = CallStack()
        self.aside = False
        self.arrived = 0
        self._callbacks: dict[HookKind, list[Callback]] = {kind: [] for kind in HookKind}
        self._before_backward: list[Callable[[Roots], object]] = []

    # What is watched.

    def wants(self, *kinds: HookKind) -> bool:
        """Whether a probe asked for one of them."""
        return any(self._callbacks[kind] for kind in kinds)

    def watches(self, hooked: HookedModule, kind: HookKind) -> bool:
        """Whether a probe asked for this kind of a module."""
        return hooked.watched and bool(self._callbacks[kind])

    def selected(self) -> Iterable[tuple[str, nn.Module]]:
        """The modules that are watched."""
        return ((n, m) for n, m in self._asked() if n not in self.unhooked)

    def not_hooked(self) -> dict[str, str]:
        """The modules that were asked for and take no hooks, with the reason."""
        return {fqn: self.unhooked[fqn] for fqn, _ in self._asked() if fqn in self.unhooked} if self.unhooked else {}

    def _asked(self) -> Iterable[tuple[str, nn.Module]]:
        return ((n, m) for n, m in self.model.named_modules() if self.select is None or self.select(n, m))

    # What fires.

    def enter_context(self, context: AbstractContextManager[T]) -> T:
        """Enter a context, such as a dispatch mode, that ends with the session."""
        return self.stack.enter_context(context)

    def subscribe(self, kind: HookKind, callback: Callback) -> None:
        """Call back with the events of this kind."""
        self._callbacks[kind].append(callback)

    def before_backward(self, callback: Callable[[Roots], object]) -> None:
        """Once the graph stands, before each backward pass: `callback(roots)` gets what is differentiated."""
        self._before_backward.append(callback)

    def tell_backward(self, roots: Roots) -> None:
        """A backward pass from these tensors is about to begin."""
        for callback in self._before_backward:
            callback(roots)

    def arrive(self) -> int:
        """The next number in the order in which gradients arrive."""
        self.arrived += 1
        return self.arrived - 1

    def emit_gradient(self, event: HookEvent, grad: Tensor) -> None:
        """Hand on a gradient that has arrived. While a module's forward runs it is of what the model differentiates."""
        inner = self.aside or bool(self.calls.running)
        self.emit(replace(event, grad=grad, inner=inner, index=self.arrived if inner else self.arrive()))

    def emit(self, event: HookEvent) -> None:
        """Hand an event to those who asked for its kind; their errors are theirs, not the model's."""
        for callback in self._callbacks[event.kind]:
            try:
                callback(event)
            except HookcliError:
                raise
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                owner = type(getattr(callback, "__self__", callback)).__name__
                raise PluginError(f"{owner} failed at {event.fqn or 'the model'}: {in_brief(error)}") from error
