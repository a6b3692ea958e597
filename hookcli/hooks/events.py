"""The event that a probe gets when a hook fires, facts about operators and autograd nodes, and hooks to be copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hookcli.hooks.kinds import HookKind
from hookcli.tensors import tree

__all__ = ["Callback", "HookEvent", "HookKind", "NodeInfo", "Operator"]


@dataclass(slots=True)
class HookEvent:
    """One firing of a hook. It holds live tensors: reduce them in the callback and keep none.

    Every kind fills these:
    `fqn`: the module or operator, or for kinds of parameters the parameter.
    `call`: the number of the module's call, from 0.
    `module`: the module, or the one that has the parameter.
    `index`: the order in which calls began; for gradients, in which they arrived.
    `edited`: the edits that changed what the event shows.
    `watched`: the event belongs to a watched module. (Tensors saved for backward are reported for all modules.)

    The rest depends on the kind:
    `args`, `kwargs`, `output`: a module's call, or an operator's.
    `operator`: the operator that the event is about, instead of a `module`.
    `grad`: the gradient of the tensor at `path`.
    `grad_outputs`, `grad_inputs`: the gradients of a node, or of a module's full backward hook.
    `tensor`: a tensor saved for backward.
    `name`: the name of a node, an attribute or an optimizer's class; `node`: the node.
    `handed_on`: the module received the gradient's tensor and returned it, or left it where others find it.
    `inner`: the gradient comes from a differentiation inside the forward or the loss function, not from the loss.
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
    node: NodeInfo | None = None
    edited: str = ""
    watched: bool = True
    handed_on: bool = False
    inner: bool = False
    operator: Operator | None = None

    def tensors(self) -> Iterator[Tensor | None]:
        """Yield the tensors that the event shows; None for a gradient that is undefined."""
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


@dataclass(frozen=True, slots=True)
class Operator:
    """A call of a function, without its tensors.

    `function`: what was called. `name`: its short name, as in `add`; `full_name`: PyTorch's, as in `torch.Tensor.add`.
    `source`: the file and line of the program that called it, as in `net.py:12`; "" if it is not known.
    `uninitialised`: it returned memory that was not all written yet, as `torch.empty` does.
    """

    function: Callable[..., object]
    name: str
    full_name: str
    source: str
    uninitialised: bool = False


@dataclass(slots=True)
class NodeInfo:
    """Facts about an autograd node, which do not keep the node alive.

    `id`: the nodes are numbered in the order in which they were found.
    `name`: PyTorch's name of it. `fqn`, `call`: the call of a module that created it.
    `next`: the ids of the nodes that its gradients go to; None where a gradient goes nowhere.
    `ours`: hookcli's hooks added the node to the graph.
    `again`: a recomputation by activation checkpointing created it.
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


# Its __exit__ takes any arguments and returns None, and unpickling it needs nothing but the standard library.
_NOTHING = nullcontext()


class PicklableHook:
    """A hook on a module of a program that does not know about it.

    PyTorch copies and pickles hooks with their modules. A deep copy, or a module that is saved meanwhile, gets a
    function that does nothing instead, so that loading the file does not need hookcli.
    """

    def __init__(self, hook: Callable[..., object]) -> None:
        self._hook = hook

    def __call__(self, *arguments: object) -> Any:
        return self._hook(*arguments)

    def __deepcopy__(self, memo: dict[int, object]) -> Callable[..., None]:
        return _NOTHING.__exit__

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, str]]:
        return getattr, (_NOTHING, "__exit__")
