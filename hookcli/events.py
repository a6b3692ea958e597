"""What a hook hands to a probe, and what a session remembers of a module and does to a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.tree import Undo


class HookKind(StrEnum):
    """What fired; PyTorch's names."""

    FORWARD_PRE = "forward_pre"
    FORWARD = "forward"
    TENSOR_GRAD_INPUT = "tensor_grad_input"
    TENSOR_GRAD_OUTPUT = "tensor_grad_output"
    POST_ACCUMULATE_GRAD = "post_accumulate_grad"


@dataclass(slots=True)
class HookEvent:
    """One firing. It holds live tensors: reduce them in the callback and keep nothing.

    `fqn` names the module (for POST_ACCUMULATE_GRAD the parameter), `call` counts the calls of that module from 0,
    `index` gives the order in which calls began (for gradients: in which they arrived).
    """

    kind: HookKind
    fqn: str
    module: nn.Module | None
    call: int
    index: int
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    path: str = ""
    grad: Tensor | None = None


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
class Site:
    """A hooked module: how often it was called, and the calls that are under way (a module may call itself)."""

    fqn: str
    module: nn.Module
    calls: int = 0
    recomputed: int = 0
    open: list[tuple[int, int, bool, Undo]] = field(default_factory=list)


def in_backward() -> bool:
    """Whether autograd is running: a forward then is a recomputation by activation checkpointing."""
    return torch._C._current_graph_task_id() != -1
