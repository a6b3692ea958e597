"""Hooked modules, the calls under way, and the call that a recomputation repeats.

Activation checkpointing runs a region of the forward again inside backward. It recomputes the last region first, and
the calls within a region in their order; it may leave out calls at the region's end. Regions are told apart by the
hooks on saved tensors that the newer checkpoint registers, new ones each time; under the older checkpoint, which runs
without grad, by the number of the node that it created.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from hookcli.hooks.edits.base import Edit
from hookcli.hooks.tensor_origins import ReceivedTensor
from hookcli.hooks.torch_private.autograd import (
    current_node,
    in_backward,
    next_sequence_number,
    saved_tensor_hooks,
    sequence_number,
)
from hookcli.tensors.tree import Undo


@dataclass(slots=True)
class _Region:
    """The calls within one checkpointed region, which recomputing it repeats."""

    token: Hashable
    calls: deque[int] = field(default_factory=deque)
    begun: bool = False


@dataclass(slots=True)
class HookedModule:
    """A hooked module, its number of `calls` in this batch and in `earlier` ones, and the edits that apply to it.

    Without `watched`, it is hooked only for its edits, or to know when it runs.
    `raised`: the calls that an exception ended, with its type; "" where only that much is known.
    """

    fqn: str
    module: nn.Module
    watched: bool = True
    edits: Mapping[str, list[Edit]] = field(default_factory=dict)
    calls: int = 0
    earlier: int = 0
    recomputed: int = 0
    raised: dict[int, str] = field(default_factory=dict)
    _regions: list[_Region] = field(default_factory=list)
    _recomputing: Hashable = None

    def begin_batch(self) -> None:
        self.earlier += self.calls
        self.calls = self.recomputed = 0
        self._regions.clear()

    def begin(self, own_pack: int | None = None) -> tuple[int, bool]:
        """Begin a call: return its number, and whether it repeats an earlier one. `own_pack`: see `CallStack`."""
        hooks = saved_tensor_hooks()
        pack = id(hooks[0]) if hooks else None
        if in_backward() and self._regions:
            node = current_node()  # by its id and number: holding the node would keep its graph alive
            repeated = self._repeated(pack or (node and (id(node), sequence_number(node))))
            if repeated is not None:
                return repeated, True
        self.calls += 1
        token = None if pack == own_pack else pack
        if not torch.is_grad_enabled():
            token = next_sequence_number()
        if token is not None and not in_backward():
            if not self._regions or self._regions[-1].token != token or self._regions[-1].begun:
                self._regions.append(_Region(token))
            self._regions[-1].calls.append(self.calls - 1)
        return self.calls - 1, False

    def _repeated(self, recomputing: Hashable) -> int | None:
        """Return the repeated call, from the last region not recomputed yet; None if all regions were."""
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
    """A call of a hooked module that is under way.

    `index`: the order in which calls began; -1 with `again`, for a recomputation of an earlier call inside backward.
    `error`: the exception being handled when the call began; a different one at its end was raised by the call.
    `received`: the tensors that it received, by id, if their gradients are watched.
    `versions`: the versions that the received memory had, by the id of the tensor that owns the memory.
    `began`: the number that autograd's next node had when the call began, where it matters.
    `operators`: how many operators of each name ran in this call itself, where they are watched.
    """

    hooked: HookedModule
    number: int
    index: int
    again: bool
    undo: Undo = field(default_factory=Undo)
    error: BaseException | None = field(default_factory=lambda: sys.exc_info()[1])
    received: dict[int, ReceivedTensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    thread: int = field(default_factory=threading.get_ident)
    began: int = 0
    operators: dict[str, int] = field(default_factory=dict)


class CallStack:
    """The calls under way, in all threads, the outermost first.

    `own_pack` identifies hookcli's own hook on saved tensors, which is no sign of a checkpointed region.
    """

    def __init__(self) -> None:
        self.running: list[Call] = []
        self.own_pack: int | None = None
        self._begun = 0

    def begin_batch(self) -> None:
        self._begun = 0

    def innermost(self) -> Call | None:
        """The call whose forward is running."""
        return self.running[-1] if self.running else None

    def caller(self) -> Call | None:
        return self.running[-2] if self.running[1:] else None

    def next_index(self) -> int:
        """Count a call that begins, and return its place in the order."""
        self._begun += 1
        return self._begun - 1

    def begin(self, hooked: HookedModule) -> Call:
        """Begin a call of a module."""
        number, again = hooked.begin(self.own_pack)
        call = Call(hooked, number, -1 if again else self.next_index(), again)
        self.running.append(call)
        return call

    def end(self, hooked: HookedModule) -> list[Call]:
        """End this thread's innermost call of a module: return it, then the lost calls that were inside it.

        A call is lost if an interrupt ended it, since PyTorch then calls no hook. Empty if the call began before the
        session did.
        """
        thread = threading.get_ident()
        for depth in range(len(self.running) - 1, -1, -1):
            call = self.running[depth]
            if call.hooked is hooked and call.thread == thread:
                lost = [other for other in self.running[depth + 1 :] if other.thread == thread]
                for other in lost:
                    if not other.again:  # a checkpoint may cut off a repeated call
                        other.hooked.raised.setdefault(other.number, "")  # PyTorch calls hooks for an Exception only
                    self.drop(other)
                self.drop(call)
                return [call, *lost]
        return []

    def drop(self, call: Call) -> None:
        """Take a call off the stack, and put back what its edits changed in lists and mappings."""
        if self.running[-1] is call:
            self.running.pop()
        else:
            self.running[:] = [other for other in self.running if other is not call]
        call.undo()
