"""What a hook hands to a probe, and what is known of an autograd node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.hooks.kinds import HookKind
from hookcli.tensors import tree

__all__ = ["Alias", "Callback", "HookEvent", "HookKind", "Made"]


@dataclass(slots=True)
class HookEvent:
    """One firing. It holds live tensors: reduce them in the callback and keep nothing.

    `fqn` names the module (for kinds of parameters the parameter), `call` counts the calls of that module from 0,
    `index` gives the order in which calls began (for gradients: in which they arrived). Of the rest each kind fills
    what it has: `args`, `kwargs`, `output`; `grad` of a tensor at `path`; `grad_outputs` and `grad_inputs` of a node or
    of a module's full backward; `tensor` that is kept for backward; `name` of a node, an attribute or an optimizer.
    `edited` tells which edits changed what the event shows, `watched` whether it is of what was asked for (kept tensors
    are told of all modules). `handed_on`: the gradient is that of a tensor which the module received and returned.
    `inner`: it is of a differentiation inside the model's forward or the loss function, not of the loss.
    """

    kind: HookKind
    fqn: str
    module: nn.Module | None = None
    call: int = 0
    index: int = 0
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    path: str = ""
    grad: Tensor | None = None
    grad_outputs: tuple[Tensor | None, ...] = ()
    grad_inputs: tuple[Tensor | None, ...] = ()
    tensor: Tensor | None = None
    name: str = ""
    node: Made | None = None
    edited: str = ""
    watched: bool = True
    handed_on: bool = False
    inner: bool = False

    def tensors(self) -> Iterator[Tensor | None]:
        """What the event shows, as far as it is tensors."""
        if self.kind is HookKind.FORWARD_PRE:
            yield from (tensor for _, tensor in tree.arguments(self.args, self.kwargs))
        elif self.kind is HookKind.FORWARD:
            yield from (tensor for _, tensor in tree.leaves(self.output))
        elif self.kind in (HookKind.NODE, HookKind.FULL_BACKWARD, HookKind.MULTI_GRAD):
            yield from self.grad_inputs
        elif self.kind in (HookKind.NODE_PRE, HookKind.FULL_BACKWARD_PRE):
            yield from self.grad_outputs
        else:
            yield from (tensor for tensor in (self.grad, self.tensor) if tensor is not None)


Callback = Callable[[HookEvent], None]


class Alias(torch.autograd.Function):
    """The same memory and version counter as another tensor for autograd, without being a view of it or a copy."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Nothing to keep: the gradient passes through."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


@dataclass(slots=True)
class Made:
    """An autograd node, without holding it: its name, the call that made it, and the nodes that it hands on to.

    `id` numbers the nodes in the order in which they were found, `next` holds the ids of those that get its gradients
    (None where one goes nowhere). `ours` marks nodes that hooks added to the graph, `again` those of a recomputation by
    activation checkpointing.
    """

    id: int
    name: str
    fqn: str
    call: int = 0
    ours: bool = False
    watched: bool = True
    again: bool = False
    hooked: bool = False
    next: list[int | None] = field(default_factory=list)
