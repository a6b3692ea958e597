"""Heads of attention as functions return them: those that a run has, and a change to one of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hookcli.errors import in_brief
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.attention_calls import FLEX, FUNCTIONS, AttentionCall, AttentionCalls, Softmax

_UNFOLLOWED = (ValueError, TypeError, RuntimeError, LookupError, AttributeError)


class SeenHeads:
    """The heads of each module that calls attention in a session's run: the same that `AttentionCalls` finds.

    `count`: the number for modules that don't say theirs. `layers`: the number of heads, by module. `unfollowed`: why
    a call could not be followed, by module. `calls`: their finder.
    """

    def __init__(self, session: HookSession, count: int) -> None:
        self.layers: dict[str, int] = {}
        self.unfollowed: dict[str, str] = {}
        self.calls = AttentionCalls(session, count)
        session.functions(self._see, *FUNCTIONS)

    def _see(self, event: HookEvent) -> None:
        with torch.no_grad(), torch.DisableTorchFunction():
            try:
                call = self.calls.of(event)
                if isinstance(call, AttentionCall) and (heads := call.by_heads(call.output).shape[1]):
                    self.layers.setdefault(event.fqn, heads)
            except _UNFOLLOWED as error:
                self.unfollowed[event.fqn] = in_brief(error)


@dataclass
class HeadChange:
    """An edit of what one head of the attention in a module returns, `head` of `heads`, at each of its calls."""

    fqn: str
    head: int
    heads: int
    edit: Edit

    def begin(self, session: HookSession, count: int) -> None:
        """Change it while the session runs."""
        self._calls = AttentionCalls(session, count)
        session.change_functions(self._change, *FUNCTIONS)

    def _change(self, event: HookEvent) -> object:
        try:
            with torch.DisableTorchFunction():
                call = self._calls.of(event)
                if call is None or isinstance(call, Softmax) or event.fqn != self.fqn:
                    return event.output
                numbers = torch.arange(call.output.numel(), device=call.output.device).view(call.output.shape)
                by_heads = call.by_heads(numbers)
        except _UNFOLLOWED:
            return event.output
        if by_heads.shape[1] != self.heads:
            return event.output
        with torch.DisableTorchFunction():
            changed = self.applied_to(call.output, by_heads[:, self.head], event)
        flex = event.operator is not None and event.operator.name == FLEX
        return (changed, *event.output[1:]) if flex else changed

    def applied_to(self, x: Tensor, places: Tensor, event: HookEvent) -> Tensor:
        """The tensor with what the edit makes of the elements at these places, and with the same strides."""
        flat = x.reshape(-1)
        part = self.edit.apply(event.fqn, event.call, "", flat[places])
        return torch.empty_like(x).copy_(flat.index_put((places,), part).view(x.shape))
