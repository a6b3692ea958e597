"""Hooked modules, the calls of them that are under way, and which call a recomputation repeats.

Activation checkpointing runs a region of the forward again inside backward. Regions are recomputed last first, the
calls within one in their order; some at its end may be left out. What tells regions apart: the hooks on saved
tensors that the newer checkpoint puts on, each time others; under the older one, which runs without grad, the number of
the node that it made.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hookcli.hooks.edits.base import Edit
from hookcli.hooks.received import ReceivedTensor
from hookcli.tensors.tree import Undo


@dataclass(slots=True)
class _Region:
    token: Hashable
    calls: deque[int] = field(default_factory=deque)
    begun: bool = False


@dataclass(slots=True)
class HookedModule:
    """A hooked module: how often it was called, and the edits on what flows through it.

    One that is not `watched` is hooked for its edits alone.
    """

    fqn: str
    module: nn.Module
    watched: bool = True
    edits: Mapping[str, list[Edit]] = field(default_factory=dict)
    calls: int = 0
    recomputed: int = 0
    raised: dict[int, str] = field(default_factory=dict)  # call -> the exception that ended it, where known
    _regions: list[_Region] = field(default_factory=list)
    _recomputing: Hashable = None

    def begin(self, own_pack: int | None = None) -> tuple[int, bool]:
        """The number of a call that begins, and whether it repeats one. `own_pack`: see `CallStack`."""
        pack = _pack_hook()
        if in_backward() and self._regions:
            repeated = self._repeated(pack or _current_node())
            if repeated is not None:
                return repeated, True
        self.calls += 1
        token = None if pack == own_pack else pack
        if not torch.is_grad_enabled():
            token = torch._C._autograd._get_sequence_nr()
        if token is not None and not in_backward():
            self._note(token)
        return self.calls - 1, False

    def _note(self, token: Hashable) -> None:
        if not self._regions or self._regions[-1].token != token or self._regions[-1].begun:
            self._regions.append(_Region(token))
        self._regions[-1].calls.append(self.calls - 1)

    def _repeated(self, recomputing: Hashable) -> int | None:
        """The call that is repeated, of the last region that was not recomputed yet; None where all were."""
        if recomputing != self._recomputing:
            self._recomputing = recomputing
            if self._regions[-1].begun:  # its last calls were left out
                self._regions.pop()
        if not self._regions:
            return None
        region = self._regions[-1]
        region.begun = True
        self.recomputed += 1
        number = region.calls.popleft()
        if not region.calls:
            self._regions.pop()
        return number


@dataclass(slots=True)
class Call:
    """A call that is under way. `again`: a recomputation of an earlier one, inside backward."""

    hooked: HookedModule
    number: int
    index: int
    again: bool
    undo: Undo = field(default_factory=Undo)
    error: BaseException | None = field(default_factory=lambda: sys.exc_info()[1])
    """What was being handled when it began: another one at its end is its own."""
    received: dict[int, ReceivedTensor] = field(default_factory=dict)
    """The tensors that it received, by their ids, where their gradients are looked at."""
    versions: dict[int, int] = field(default_factory=dict)
    """Versions of the memory that it received, when it began, by the ids of the tensors that own the memory."""
    thread: int = field(default_factory=threading.get_ident)
    """Which one made it."""
    began: int = 0
    """Autograd's number of the next node when it began, where that matters."""


class CallStack:
    """The calls under way, in all threads, the outermost first.

    `own_pack` identifies hookcli's own hook on saved tensors, which is no sign of a checkpointed region.
    """

    def __init__(self) -> None:
        self.running: list[Call] = []
        self.own_pack: int | None = None
        self._begun = 0

    def innermost(self) -> Call | None:
        """The call whose forward is running."""
        return self.running[-1] if self.running else None

    def caller(self) -> Call | None:
        """The call around the innermost one, whose own code makes it."""
        return self.running[-2] if self.running[1:] else None

    def begin(self, hooked: HookedModule) -> Call:
        """A module is called."""
        number, again = hooked.begin(self.own_pack)
        call = Call(hooked, number, -1 if again else self._begun, again)
        if not again:
            self._begun += 1
        self.running.append(call)
        return call

    def end(self, hooked: HookedModule) -> list[Call]:
        """The innermost call of this module in this thread is over: return it, then calls inside that were lost.

        PyTorch calls no hook at the end of a call that an interrupt ended. Empty where the call began before the
        session did. Other threads may have calls of the module, too.
        """
        thread = threading.get_ident()
        for depth in range(len(self.running) - 1, -1, -1):
            call = self.running[depth]
            if call.hooked is hooked and call.thread == thread:
                lost = [other for other in self.running[depth + 1 :] if other.thread == thread]
                for other in lost:
                    other.hooked.raised.setdefault(other.number, "")  # PyTorch tells of an Exception alone
                    self.drop(other)
                self.drop(call)
                return [call, *lost]
        return []

    def drop(self, call: Call) -> None:
        """The call is over: put back what lists and mappings held."""
        if self.running[-1] is call:
            self.running.pop()
        else:
            self.running[:] = [other for other in self.running if other is not call]
        call.undo()


def in_backward() -> bool:
    """Whether autograd is running: a forward then is a recomputation by activation checkpointing."""
    return torch._C._current_graph_task_id() != -1


def _current_node() -> Hashable:
    """The node that autograd is running, by what tells it from others: held itself, it would keep its graph alive."""
    node = torch._C._current_autograd_node()
    return node and (id(node), node._sequence_nr())


def in_func() -> bool:
    """Whether a transform of torch.func is at work: what modules return is wrapped then, and leads to no parameter."""
    functorch: Any = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None


def _pack_hook() -> int | None:
    """Which hooks on saved tensors are in force, by the identity of the one that packs."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return id(hooks[0]) if hooks else None
