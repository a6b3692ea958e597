"""The outermost call of a module in each thread: a global pre-hook finds it, a hook on that module tells its end."""

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

from hookcli.hooks.calls import in_backward
from hookcli.hooks.picklable import PicklableHook
from hookcli.hooks.program.finalizer import Token, raise_dropped, when_gone
from hookcli.hooks.program.listener import Listener


@dataclass(slots=True)
class _OutermostCall:
    """The outermost call that is under way in a thread; `depth` counts calls of the module inside it."""

    module: nn.Module | None
    frame: FrameType | None
    error: BaseException | None
    handle: RemovableHandle | None = None
    depth: int = 0

    def over(self) -> None:
        """Keep nothing of the program's alive: where an exception passes, the hook at the end stays for a while."""
        self.module = self.frame = self.error = None

    def still(self) -> bool:
        """Whether its frame is on the stack: an interrupt, of which no hook is told, may have ended it."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None


class _Local(threading.local):
    call: _OutermostCall | None = None


class OutermostCalls:
    """Tells a listener of them. `entering` makes the pre-hook."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._local = _Local()
        self._later: dict[int, tuple[RemovableHandle, ref[Token] | None]] = {}  # by thread

    def close(self) -> None:
        """Take off what is left."""
        for handle, _ in self._later.values():
            handle.remove()
        self._later.clear()

    def clean_up(self) -> None:
        """Take off what could not be taken off while an exception passed through it."""
        if self._later and (later := self._later.pop(threading.get_ident(), None)) is not None:
            later[0].remove()

    def entering(self) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        local, listener = self._local, self._listener
        is_compiling = torch.compiler.is_compiling

        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            if is_compiling():
                return
            call = local.call
            if call is not None and ((call.module is not module and _by_module()) or self._inside(call, module)):
                return
            if in_backward() or torch._C._is_tracing():  # a recomputation; not a run
                return
            self.clean_up()
            raise_dropped()
            listener.enter(module, args)
            if isinstance(module, torch.jit.ScriptModule):  # takes no hook that could tell of its end
                return
            local.call = call = _OutermostCall(module, sys._getframe(1), sys.exc_info()[1])
            call.handle = self._at_the_end(module, PicklableHook(partial(self._leave, call)))

        return enter

    def _at_the_end(self, module: nn.Module, leave: Callable[..., Any]) -> RemovableHandle:
        if isinstance(module, nn.TransformerEncoderLayer):  # a hook of its own would keep it off its fused path
            return torch_module.register_module_forward_hook(leave, always_call=True)
        return module.register_forward_hook(leave, with_kwargs=True, always_call=True)

    def _inside(self, call: _OutermostCall, module: nn.Module) -> bool:
        """Whether a module is called by what runs, maybe by itself; not where that was interrupted."""
        if call.still():
            call.depth += call.module is module
            return True
        self._drop(call)
        return False

    def _leave(self, call: _OutermostCall, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Token | None:
        """The hook at the end. `rest`: keyword arguments and the output.

        Without the former where another thread, which runs the same module, has just taken this hook off.
        """
        if call is not self._local.call or module is not call.module:  # of another thread; or it was interrupted
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
        """PyTorch is walking through the module's hooks: none can be taken off, nor see what this one returns."""
        thread = threading.get_ident()
        if next(reversed(module._forward_hooks), None) != handle.id:
            self._later[thread] = handle, None
            return None
        token = Token()
        self._later[thread] = handle, when_gone(token, partial(self._let_go, thread, handle))
        return token

    def _let_go(self, thread: int, handle: RemovableHandle) -> None:
        later = self._later.get(thread)
        if later is not None and later[0] is handle:
            del self._later[thread]
            handle.remove()
            self._listener.failed(thread)

    def _drop(self, call: _OutermostCall) -> None:
        self._local.call = None
        call.over()
        if call.handle:
            call.handle.remove()

    def drop_interrupted(self) -> None:
        """Forget this thread's call, if an interrupt has ended it."""
        call = self._local.call
        if call is not None and not call.still():
            self._drop(call)


def _by_module() -> bool:
    """Whether the forward of a module has itself made the call whose hook asks, which is quickly told: PyTorch has as
    many frames around each."""
    try:
        return sys._getframe(6).f_code is sys._getframe(2).f_code
    except ValueError:  # there are not so many
        return False
