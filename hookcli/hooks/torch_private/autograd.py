"""Private names of autograd: the running node, the numbers of nodes, hooks on saved tensors and on tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import Node

from hookcli.hooks.torch_private.nodes import kept
from hookcli.tensors.torch_private import caller, getter, private

_REPEATED = "calls that activation checkpointing repeats count as further calls"
_graph_task: Callable[[], int] = private("torch._C", "_current_graph_task_id", lambda: -1, _REPEATED)


def in_backward() -> bool:
    """True if autograd is running: a forward is then a recomputation by activation checkpointing."""
    return _graph_task() != -1


_BY_ORDER = "full backward hooks are matched with calls by their order, and reentrant checkpoints are not told apart"
current_node: Callable[[], Node | None] = private("torch._C", "_current_autograd_node", lambda: None, _BY_ORDER)
"""The node that autograd is running; None outside a backward pass."""

_UNORDERED = (
    "nodes have no order: full backward hooks, and gradients of inputs before torch 2.14, may be of other calls"
)
sequence_number: Callable[[Node], int] = caller(Node, "_sequence_nr", lambda node: 0, _UNORDERED)
"""A node's number in the order in which its thread created nodes: later nodes have greater numbers."""

_NOT_APART = "nodes that a call creates are not told from earlier ones, nor the regions of reentrant checkpoints"
next_sequence_number: Callable[[], int] = private("torch._C._autograd", "_get_sequence_nr", lambda: 0, _NOT_APART)
"""The number that autograd will give to this thread's next node."""

_TRACED = "nodes that torch.compile creates while it traces are listed as if they had run"
tracing_context: Callable[[], object] = private("torch._guards.TracingContext", "try_get", lambda: None, _TRACED)
"""None unless torch.compile is tracing; the graph created meanwhile never runs."""

_EARLIER = "backward through a graph that was created before the run may be refused"
keeping_versions: Callable[[tuple[Tensor, ...]], AbstractContextManager[object]] = private(
    "torch.autograd.grad_mode", "_unsafe_preserve_version_counter", lambda tensors: nullcontext(), _EARLIER
)
"""A block at whose end these tensors get their old versions back; by then they must hold their old values."""


def version(tensor: Tensor) -> int:
    """How often the values of a tensor, and of its views, have been changed in place."""
    return int(private(tensor, "_version", 0, "changes in place before a backward pass are not seen"))


_NEVER = "hooks of the kind engine_callback never fire"
queue_callback: Callable[[Callable[[], None]], None] = getattr(graph, "queue_callback", None) or private(
    "torch.autograd.Variable._execution_engine", "queue_callback", lambda callback: None, _NEVER
)
"""Have autograd call back when the running backward pass is over; public since torch 2.15."""

# Hooks on saved tensors.

FUNC_FAILS = "torch.func fails while saved tensors are watched"
_SAVED = "torch._C._autograd"
_REGIONS = f"regions of activation checkpointing are not told apart, and {FUNC_FAILS}"
_innermost = private(_SAVED, "_top_saved_tensors_default_hooks", lambda ignore_tracing: None, _REGIONS)
saved_tensor_hooks: Callable[[], tuple[object, object] | None] = partial(_innermost, True)
"""This thread's innermost hooks on saved tensors: the pack hook and the unpack hook; None if there are none."""

_UNWATCHED = "saved tensors are no longer watched after torch.func"
push_saved_tensor_hooks: Callable[[object, object], None] = private(
    _SAVED, "_push_saved_tensors_default_hooks", lambda pack, unpack: None, _UNWATCHED
)
pop_saved_tensor_hooks: Callable[[], None] = private(
    _SAVED, "_pop_saved_tensors_default_hooks", lambda: None, FUNC_FAILS
)

# Hooks on tensors.

_UNLISTED = "hooks on tensors are not listed, and may come before hookcli's or be dropped by hooks in C++"
tensor_hooks: Callable[[Tensor], dict[int, object] | None] = getter(
    Tensor, "_backward_hooks", lambda tensor: None, _UNLISTED
)
"""A tensor's hooks from `Tensor.register_hook`, by id in the order of calling; None before the first one."""

_DROPPED = "hooks on accumulated gradients are not listed, and one that drops .grad may come before hookcli's"
post_accumulate_grad_hooks: Callable[[Tensor], dict[int, object] | None] = getter(
    Tensor, "_post_accumulate_grad_hooks", lambda tensor: None, _DROPPED
)
"""A parameter's hooks from `register_post_accumulate_grad_hook`, by id; None before the first one."""


def saved_result(relu: Node) -> Tensor | None:
    """The output that a ReLU's node saved for backward; None if hooks have packed it.

    Raises RuntimeError where it was changed in place since.
    """
    lost = "dead units of functional ReLUs are not counted"
    result: Tensor | None = (
        private(relu, "_saved_result", None, lost) if kept(relu, "result", lost) is not None else None
    )
    return result
