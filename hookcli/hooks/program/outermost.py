"""The outermost call of a module in each thread: a global pre-hook finds it, a hook on the module sees its end."""

from __future__ import annotations

import sys
import threading
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
from hookcli.hooks.torch_private.frames import called_by_module, frame_of_call, on_stack
from hookcli.hooks.torch_private.modules import forward_hooks
from hookcli.tensors.tree import Args, Kwargs


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
    """A thread's outermost call, while it is under way. `depth`: how many calls of the same module are inside it."""

    module: nn.Module | None
    frame: FrameType | None
    error: BaseException | None
    handle: RemovableHandle | None = None
    depth: int = 0

    def over(self) -> None:
        """Release the program's objects: after an exception, the hook, which refers to this, stays for a while."""
        self.module = self.frame = self.error = None


class _Local(threading.local):
    """The outermost call of each thread. `busy`: the listener calls modules itself, which are not reported."""

    call: _OutermostCall | None = None
    busy = False


class OutermostCalls:
    """Reports outermost calls to a listener. `entering` makes the global pre-hook."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._local = _Local()
        self._later: dict[int, tuple[RemovableHandle, ref[Token] | None]] = {}  # by thread

    def close(self) -> None:
        for handle, _ in self._later.values():
            handle.remove()
        self._later.clear()

    def clean_up(self) -> None:
        """Remove this thread's hook that could not be removed while an exception passed."""
        if self._later and (later := self._later.pop(threading.get_ident(), None)) is not None:
            later[0].remove()

    def entering(self) -> Callable[[nn.Module, Args], None]:
        local = self._local
        is_compiling = torch.compiler.is_compiling
        is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]

        def enter(module: nn.Module, args: Args) -> None:
            if is_compiling() or local.busy:
                return
            call = local.call
            if call is not None and ((call.module is not module and called_by_module()) or self._inside(call, module)):
                return
            if in_backward() or is_tracing():  # a recomputation, or tracing
                return
            self._report(module, args)
            if isinstance(module, torch.jit.ScriptModule):  # takes no hook that could see the end
                return
            local.call = call = _OutermostCall(module, frame_of_call(sys._getframe(1)), sys.exc_info()[1])
            leave = PicklableHook(partial(self._leave, call))
            if isinstance(module, nn.TransformerEncoderLayer):  # a local hook would switch its fused path off
                call.handle = torch_module.register_module_forward_hook(leave, always_call=True)
            else:
                call.handle = module.register_forward_hook(leave, with_kwargs=True, always_call=True)

        return enter

    @property
    def busy(self) -> bool:
        """True while the listener, told of a call that begins, calls modules itself in this thread."""
        return self._local.busy

    def _report(self, module: nn.Module, args: Args, kwargs: Kwargs | None = None) -> None:
        self.clean_up()
        raise_dropped()
        self._local.busy = True
        try:
            self._listener.enter(module, args, kwargs)
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

    def _inside(self, call: _OutermostCall, module: nn.Module) -> bool:
        """Return whether the module is called inside this call; an interrupted call is dropped."""
        if on_stack(call.frame):
            call.depth += call.module is module
            return True
        self._drop(call)
        return False

    def _leave(self, call: _OutermostCall, module: nn.Module, args: Args, *rest: Any) -> Token | None:
        """Report the end of the call. `rest`: keyword arguments and the output.

        PyTorch passes no keyword arguments if another thread, which runs the same module, has just removed this hook.
        """
        if call is not self._local.call or module is not call.module:  # another thread's call, or an interrupted one
            return None
        if call.depth:
            call.depth -= 1
            return None
        self._local.call = None
        handle, error = call.handle, call.error
        assert handle is not None
        call.over()
        kwargs, output = rest if len(rest) == 2 else ({}, rest[0])
        if output is None and sys.exc_info()[1] is not error:
            return self._failed(module, handle)
        handle.remove()
        self._listener.leave(module, args, kwargs, output)
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
        call.over()
        if call.handle:
            call.handle.remove()

    def drop_interrupted(self) -> None:
        """Forget this thread's call, if an interrupt has ended it."""
        call = self._local.call
        if call is not None and not on_stack(call.frame):
            self._drop(call)
