"""The core of a session: the model, what to watch of it, the calls under way, and the callbacks.

Every hook group gets the core; the session (session.py) is the core with all groups on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum, auto
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hookcli.errors import HookcliError, PluginError, in_brief
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import Callback, HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.module_calls import Call, CallStack, HookedModule
from hookcli.hooks.parts import Select, compiled_parts, scripted_parts
from hookcli.system.handlers import raised_by_signal_handler

Roots = Sequence[Tensor]
CallbackGuard = Callable[[Callable[..., object]], Callable[..., Any]]


@dataclass(eq=False, repr=False)
class SessionCore:
    """State that the hook groups of a session share. `HookSession` documents the arguments.

    `stack`: closed when the session ends; every hook and switch is on it.
    `unhooked`: the parts that take no hooks, each with its reason: TorchScript, and with `follow` what is compiled,
    which would be compiled again with the hooks in it.
    `arrived`: how many gradients have arrived.
    `ran_inside`: a module was seen to run inside a compiled program.
    `past_compiled`: compiled modules run as they are compiled, without the mode that sees operators.
    `operators_too`: callbacks that subscribe now also get the events of operators.
    `wrap_callback`: wraps callbacks that subscribe now.
    `before_operators`: called before each function that may turn out to be an operator, with the module's call.
    `clock`: counts the time that callbacks take, unless `guard` does.
    """

    model: nn.Module
    _: KW_ONLY
    select: Select | None = None
    fastpath: bool = True
    globally: bool = False
    edits: Sequence[Edit] = ()
    follow: bool = False
    processes: int = 1
    guard: CallbackGuard | None = None
    callers_run: bool = False
    discard_saved: bool = False
    ops: str | None = None
    inside_compiled: bool = False

    def __post_init__(self) -> None:
        whole = self.follow and not self.inside_compiled
        self.unhooked = scripted_parts(self.model) | (compiled_parts(self.model) if whole else {})
        self.callers_run |= self.follow
        self.past_compiled = self.callers_run
        self.clock = ProgramClock()
        self.guarded: CallbackGuard = self.guard or self.clock.counted
        self.stack = ExitStack()
        self.calls = CallStack()
        self._inner = False
        self.arrived = 0
        self.ran_inside = False
        self._callbacks: dict[HookKind, list[Callback]] = {kind: [] for kind in HookKind}
        self._of_operators: dict[HookKind, list[Callback]] = {kind: [] for kind in HookKind}
        self.operators_too = True
        self.loss_call: Call | None = None
        """Stands for the loss function, while its operators are watched."""
        self.wrap_callback: Callable[[Callback], Callback] = lambda callback: callback
        self.before_operators: list[Callable[[Call, object], object]] = []
        self._before_backward: list[Callable[[Roots], object]] = []

    # What is watched.

    def wants(self, *kinds: HookKind) -> bool:
        """Return whether a probe asked for one of these kinds."""
        return any(self._callbacks[kind] for kind in kinds)

    def wants_of_operators(self, kind: HookKind) -> bool:
        """Return whether a probe asked for this kind of operators."""
        return bool(self._of_operators[kind])

    def watches(self, hooked: HookedModule, kind: HookKind) -> bool:
        """Return whether a probe asked for this kind and watches the module."""
        return hooked.watched and bool(self._callbacks[kind])

    def selected(self) -> Iterable[tuple[str, nn.Module]]:
        """Return the watched modules, by fqn."""
        return ((n, m) for n, m in self._asked() if n not in self.unhooked)

    def not_hooked(self) -> dict[str, str]:
        """Return the selected modules that take no hooks, with the reason."""
        return {fqn: self.unhooked[fqn] for fqn, _ in self._asked() if fqn in self.unhooked} if self.unhooked else {}

    def _asked(self) -> Iterable[tuple[str, nn.Module]]:
        return ((n, m) for n, m in self.model.named_modules() if self.select is None or self.select(n, m))

    # Events.

    def subscribe(self, kind: HookKind, callback: Callback, *, modules: bool = True) -> None:
        """Call back with every event of this kind; with operators' events only if `operators_too`."""
        callback = self.wrap_callback(callback)
        if modules:
            self._callbacks[kind].append(callback)
        if self.operators_too:
            self._of_operators[kind].append(callback)

    def before_backward(self, callback: Callable[[Roots], object]) -> None:
        """Call `callback(roots)` before each backward pass, once the graph of its roots is complete."""
        wrap: Callable[[Any], Any] = self.wrap_callback
        self._before_backward.append(wrap(callback))

    def backward_begins(self, roots: Roots) -> None:
        """Call the callbacks of `before_backward`: a backward pass from these tensors is about to begin."""
        for callback in self._before_backward:
            callback(roots)

    def next_arrival(self) -> int:
        """Count an arriving gradient, and return its number."""
        self.arrived += 1
        return self.arrived - 1

    @contextmanager
    def inner_gradients(self) -> Iterator[None]:
        """Mark gradients that arrive in this block as `inner`: the loss function differentiates something."""
        self._inner = True
        try:
            yield
        finally:
            self._inner = False

    def emit_gradient(self, event: HookEvent, grad: Tensor) -> None:
        """Emit a gradient that arrived; one that arrives while a forward runs is `inner`."""
        # No hook sees that a checkpoint has cut off the repeated call of a compiled part.
        running = (call for call in self.calls.running if not (call.again and self.inside_compiled))
        inner = self._inner or any(running)
        self.emit(replace(event, grad=grad, inner=inner, index=self.arrived if inner else self.next_arrival()))

    def emit(self, event: HookEvent) -> None:
        """Call the callbacks for the kind."""
        for callback in (self._callbacks if event.operator is None else self._of_operators)[event.kind]:
            self.call_back(callback, event)

    def call_back(self, callback: Callback, event: HookEvent) -> None:
        """Call a callback. Its errors become PluginErrors: the model did not raise them.

        After an exception grad mode is as before: a signal handler's may break into the lines of PyTorch's `no_grad`.
        """
        before = torch.is_grad_enabled()
        try:
            self.clock.enter()
            callback(event)
        except BaseException as error:
            torch.set_grad_enabled(before)
            if isinstance(error, HookcliError) or not isinstance(error, Exception) or raised_by_signal_handler(error):
                raise
            owner = type(getattr(callback, "__self__", callback)).__name__
            raise PluginError(f"{owner} failed at {event.fqn or 'the model'}: {in_brief(error)}") from error
        finally:
            self.clock.leave()


class Needs(Enum):
    """The calls of modules that a hook group must know; the modules are hooked for it."""

    NOTHING = auto()
    WATCHED_CALLS = auto()
    EVERY_CALL = auto()
    """Including calls of unwatched modules, since it matters which module is running."""


class HookGroup:
    """Hooks that are registered in one way, each on the session's stack, so that they end with the session."""

    kinds: ClassVar[Sequence[HookKind]]
    needs: ClassVar[Needs] = Needs.NOTHING

    def __init__(self, core: SessionCore) -> None:
        self.core = core

    def release(self) -> None:
        """Forget the model's parts, as the session forgets the model."""

    def start(self, kind: HookKind) -> None:
        """Register the hooks of a kind that a probe asks for; the calls that the group needs are hooked already."""
