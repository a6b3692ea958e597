"""The outermost call of a module in each thread: a global pre-hook finds it, a hook on the module sees its end."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from hookcli.hooks.events import PicklableHook
from hookcli.hooks.program.listener import Listener
from hookcli.hooks.torch_private.autograd import in_backward
from hookcli.hooks.torch_private.dynamo import frames_compiled
from hookcli.hooks.torch_private.frames import called_by_module, frame_of_call, on_stack
from hookcli.hooks.torch_private.modules import forward_hooks, has_forward_hooks, other_global_hooks
from hookcli.tensors.tree import Args, Kwargs
from hookcli.tensors.weak import WeakIds


class Token:
    """Lives as long as the frame of a call or step: a hook returns it, and PyTorch keeps it in a local variable.

    The frame of a call that failed lives as long as the exception.
    """

    __slots__ = ("__weakref__",)


class KwargsWithToken(dict[str, object]):
    """Keyword arguments with a token that lives as long as they do."""

    def __init__(self, kwargs: Kwargs, token: Token) -> None:
        super().__init__(kwargs)
        self.token = token


class ArgsWithToken(tuple[object, ...]):
    """Positional arguments with a token that lives as long as they do."""

    token: Token


def when_gone(token: Token, do: Callable[[], object]) -> ref[Token]:
    """Call `do` when the token dies, unless the returned reference dies first.

    Let the reference die first wherever nothing has failed: Python drops exceptions from such a callback, also the
    KeyboardInterrupt of a Ctrl-C.
    """

    def gone(_: ref[Token]) -> None:
        try:
            do()
        except BaseException as error:
            _dropped.append(error)

    return ref(token, gone)


_dropped: list[BaseException] = []


def raise_dropped() -> None:
    """Raise, in the main thread, an interrupt that came during a finalizer."""
    if _dropped and threading.current_thread() is threading.main_thread():
        raise _dropped.pop()


@dataclass(slots=True)
class _OutermostCall:
    """A thread's outermost call, while it is under way."""

    module: nn.Module | None
    frame: FrameType | None
    error: BaseException | None
    handle: RemovableHandle | None = None
    token: ref[Token] | None = None

    def over(self) -> None:
        """Release the program's objects: after an exception, the hook, which refers to this, stays for a while."""
        self.module = self.frame = self.error = self.token = None


class _Local(threading.local):
    """The outermost call of each thread. `busy`: the listener calls modules itself, which are not reported."""

    call: _OutermostCall | None = None
    busy = False


_SERVANTS = ("QueueFeederThread", "_pin_memory_loop", "TMonitor", "TensorBoard")


def other_threads() -> bool:
    """True if another thread may call modules: one that neither feeds a DataLoader nor draws a progress bar."""
    if threading.active_count() == 1:
        return False
    this_thread = threading.get_ident()
    others = (f"{type(one).__name__} {one.name}" for one in threading.enumerate() if one.ident != this_thread)
    return not all(any(servant in name for servant in _SERVANTS) for name in others)


class OutermostCalls:
    """Reports outermost calls to a listener. `entering` makes the global pre-hook; `registered` gets its handle.

    The hook is off while an outermost call runs: PyTorch calls the modules inside more quickly without one. Where other
    threads may call modules it stays on, since it is the same for all, and where other hooks would see the arguments.
    It also stays on in a module's first call and once anything was compiled: programs of torch.compile guard the hooks.
    A token tells of the end of a call whose end does not matter to the listener, and of one that an interrupt ends,
    since no hook does.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._local = _Local()
        self._hooks: OrderedDict[int, Any] = OrderedDict()
        self._id = 0
        self._hook: Any = None
        self._later: dict[int, tuple[RemovableHandle, ref[Token] | None]] = {}  # by thread
        self._called: WeakIds[nn.Module, None] = WeakIds()
        self.passing = False
        """True while calls are not reported: but for the first one of a step, if it has no gradients."""

    def let_pass(self) -> bool:
        """Report no calls from here on, unless one is under way. Returns whether it is so."""
        self.drop_interrupted()
        idle = self._local.call is None and not self._later
        self.passing = idle and not other_threads() and not frames_compiled()
        return self.passing

    def follow(self) -> None:
        """Report calls again."""
        self.passing = False
        self._on()

    def _passes(self) -> bool:
        """Look at the first call of a step that passes. Returns whether no more of its calls are to be looked at."""
        passes = torch.is_grad_enabled() or not self._listener.evaluation_begins()
        if passes:
            self._hooks.pop(self._id, None)
        return passes

    def next_step(self) -> None:
        """The first call of the next step is looked at."""
        self._on()

    def registered(self, handle: RemovableHandle) -> None:
        """Note the handle of the global pre-hook."""
        hooks: Any = handle.hooks_dict_ref()
        self._hooks, self._id, self._hook = hooks, handle.id, hooks[handle.id]

    def _off(self, call: _OutermostCall, args: Args) -> ArgsWithToken:
        """Take the global pre-hook off during this call. Returns arguments for it that tell of its end."""

        def gone() -> None:
            """Note that the frame of this call is gone, and no hook has told."""
            if self._local.call is call:
                self._drop(call)

        passed_on = ArgsWithToken(args)
        passed_on.token = token = Token()
        call.token = when_gone(token, gone)
        self._hooks.pop(self._id, None)
        return passed_on

    def _on(self) -> None:
        """Put the global pre-hook on again, before other global hooks, as it was."""
        if self._hook is not None and self._id not in self._hooks:
            self._hooks[self._id] = self._hook
            self._hooks.move_to_end(self._id, last=False)

    def close(self) -> None:
        self._hook = None
        for handle, _ in self._later.values():
            handle.remove()
        self._later.clear()

    def clean_up(self) -> None:
        """Remove this thread's hook that could not be removed while an exception passed."""
        if self._later and (later := self._later.pop(threading.get_ident(), None)) is not None:
            later[0].remove()

    def entering(self) -> Callable[..., Any]:
        local = self._local
        is_compiling = torch.compiler.is_compiling
        is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]

        def enter(module: nn.Module, args: Args) -> Args | None:
            if is_compiling() or local.busy or (self.passing and self._passes()):
                return None
            call = local.call
            if (call is None or call.module is not module) and called_by_module():
                return None  # with no call: inside one that began while the hook was off for another thread's
            if call is not None and self._inside(call):
                return None
            if in_backward() or is_tracing():  # a recomputation, or tracing
                return None
            return self._begin(module, args, sys._getframe(1))

        return enter

    def _begin(self, module: nn.Module, args: Args, caller: FrameType) -> Args | None:
        """Report an outermost call, which begins, and have its end noted. Returns other arguments for it, if any."""
        # Whether the global pre-hook may be off during the call. Asked first: the listener may add hooks to the module.
        alone = False
        if module not in self._called:
            self._called[module] = None
        elif not (frames_compiled() or has_forward_hooks(module)):
            alone = not (other_global_hooks(self._id) or other_threads())
        matters = self._report(module, args)
        if isinstance(module, torch.jit.ScriptModule):  # takes no hook that could see the end
            return None
        self._local.call = call = _OutermostCall(module, frame_of_call(caller), sys.exc_info()[1])
        if alone and not matters:
            return self._off(call, args)
        leave = PicklableHook(partial(self._leave, call))
        if isinstance(module, nn.TransformerEncoderLayer):  # a local hook would switch its fused path off
            call.handle = torch_module.register_module_forward_hook(leave, always_call=True)
        else:
            call.handle = module.register_forward_hook(leave, with_kwargs=True, always_call=True)
        return self._off(call, args) if alone else None

    @property
    def busy(self) -> bool:
        """True while the listener, told of a call that begins, calls modules itself in this thread."""
        return self._local.busy

    def _report(self, module: nn.Module, args: Args, kwargs: Kwargs | None = None) -> bool:
        """Report a call that begins. Returns whether its end matters."""
        self.clean_up()
        raise_dropped()
        self._local.busy = True
        try:
            return self._listener.enter(module, args, kwargs)
        finally:
            self._local.busy = False

    def in_place(self, module: nn.Module, compiled: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """Make a call of a module that `module.compile()` has compiled, of which hooks see nothing, and report it."""
        call = self._local.call
        if torch.compiler.is_compiling() or self.busy or in_backward() or (call is not None and on_stack(call.frame)):
            return compiled(*args, **kwargs)
        self.drop_interrupted()
        self._report(module, args, kwargs)
        self._local.call = call = _OutermostCall(module, sys._getframe(), None)
        try:
            output = compiled(*args, **kwargs)
        except Exception:
            self._local.call = None
            call.over()
            self._listener.call_failing()
            self._listener.call_failed(threading.get_ident())
            raise
        self._local.call = None
        call.over()
        self._listener.leave(module, args, kwargs, output)
        return output

    def _inside(self, call: _OutermostCall) -> bool:
        """Return whether a module is called inside this call; an interrupted call is dropped."""
        if on_stack(call.frame):
            return True
        self._drop(call)
        return False

    def _leave(self, call: _OutermostCall, module: nn.Module, args: Args, *rest: Any) -> Token | None:
        """Report the end of the call. `rest`: keyword arguments and the output.

        PyTorch passes no keyword arguments if another thread, which runs the same module, has just removed this hook.
        """
        if call is not self._local.call or module is not call.module:  # another thread's call, or an interrupted one
            return None
        if frame_of_call(sys._getframe(1)) is not call.frame:  # a call of the same module inside
            return None
        self._local.call = None
        self._on()
        handle, error = call.handle, call.error
        assert handle is not None
        call.over()
        kwargs, output = rest if len(rest) == 2 else ({}, rest[0])
        if output is None and sys.exc_info()[1] is not error:
            return self._failed(module, handle)
        handle.remove()
        self._listener.leave(module, tuple(args), kwargs, output)
        return None

    def _failed(self, module: nn.Module, handle: RemovableHandle) -> Token | None:
        """Remove the hook later: PyTorch is iterating over the module's hooks now, because the call raised."""
        self._listener.call_failing()
        thread = threading.get_ident()
        if next(reversed(forward_hooks(module)), None) != handle.id:
            self._later[thread] = handle, None
            return None
        token = Token()

        def let_go() -> None:
            later = self._later.get(thread)
            if later is not None and later[0] is handle:
                del self._later[thread]
                handle.remove()
                self._listener.call_failed(thread)

        self._later[thread] = handle, when_gone(token, let_go)
        return token

    def _drop(self, call: _OutermostCall) -> None:
        self._local.call = None
        self._on()
        call.over()
        if call.handle:
            call.handle.remove()

    def drop_interrupted(self) -> None:
        """Forget this thread's call, if an interrupt has ended it."""
        call = self._local.call
        if call is not None and not on_stack(call.frame):
            self._drop(call)
