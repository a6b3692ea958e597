"""States of recurrent layers that are lost, or cut off from gradients, between time steps, or made by padding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hookcli.capabilities.learn.forwards.last_states import LastStates
from hookcli.hooks.events import HookEvent
from hookcli.tensors import tree

_CALLS = 3  # in a forward

NONE, DETACHED, ZERO, LINKED = "none", "detached", "zero", "linked"


@dataclass
class States:
    """The states that recurrent layers got in a step, if they take one time step per call; first calls are left out."""

    last: LastStates
    kinds: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The calls of each in the forward under way."""
    most: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    zeros: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    """For each state without a graph whether all of it is zero, on its device."""
    returned: dict[str, int] = field(default_factory=dict)
    """The place in memory of the state that it returned last, with a graph."""

    def enter(self, event: HookEvent) -> None:
        """Note the state that a layer is about to get. Waits for nothing."""
        self.last.enter(event)
        if not event.fqn:
            self.calls.clear()
            self.returned.clear()
        if not takes_one_step(event):
            return
        fqn, state = event.fqn, state_of(event)
        self.calls[fqn] += 1
        self.most[fqn] = max(self.most[fqn], self.calls[fqn])
        if self.calls[fqn] == 1:  # which begins a sequence
            return
        if state is None:
            self.kinds[fqn].add(NONE)
        elif state.requires_grad or not tree.is_plain(state):
            self.kinds[fqn].add(LINKED)
        elif self.returned.get(fqn) == state.data_ptr():
            self.kinds[fqn].add(DETACHED)
        else:
            self.kinds[fqn].add(ZERO)
            self.zeros[fqn].append((state.detach() == 0).all())

    def leave(self, event: HookEvent) -> None:
        """Note the state that a layer returned."""
        self.last.leave(event)
        if takes_one_step(event):
            outputs = tree.tensors(event.output)
            if outputs and outputs[0].requires_grad:
                state = outputs[0] if isinstance(event.module, nn.RNNCellBase) else outputs[1]
                self.returned[event.fqn] = state.data_ptr()

    def fields(self, name: Callable[[str], str]) -> dict[str, str]:
        """The fields of a line. Waits for an accelerator."""
        return {"states": self.words(name), "padded": self.last.words(name)}

    def words(self, name: Callable[[str], str]) -> str:
        """Words on the first layer whose states are lost in all calls of all forwards; "" if there is none.

        Waits for an accelerator.
        """
        for fqn, kinds in self.kinds.items():
            place, calls = name(fqn) or "the model", f"{self.most[fqn]:,} calls in a forward"
            if self.most[fqn] < _CALLS or len(kinds) != 1:
                continue
            if DETACHED in kinds:
                return f"the state of {place} is detached between its {calls}: no gradient goes back in time"
            if NONE in kinds or (ZERO in kinds and all(map(bool, self.zeros[fqn]))):
                return f"{place} begins with a state of zeros in each of its {calls}: it forgets each time step"
        return ""


def takes_one_step(event: HookEvent) -> bool:
    """True if a module is a recurrent cell, or gets a sequence of one time step."""
    if isinstance(event.module, nn.RNNCellBase):
        return True
    if not isinstance(event.module, nn.RNNBase):
        return False
    received = tree.received(event.args, event.kwargs)
    shape = tree.shape_of(received[0]) if received else []
    return len(shape) == 3 and shape[1 if event.module.batch_first else 0] == 1


def state_of(event: HookEvent) -> Tensor | None:
    """The state that a layer gets: the hidden one of an LSTM. None if it gets none."""
    state: Any = event.args[1] if len(event.args) > 1 else (event.kwargs or {}).get("hx")
    hidden = state[0] if isinstance(state, (tuple, list)) else state
    return hidden if isinstance(hidden, Tensor) else None
