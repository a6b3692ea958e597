"""Private names of autograd: the node that runs, the numbers of nodes, hooks on saved tensors and on tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd import graph
from torch.autograd.graph import Node

from hookcli.tensors.torch_private import caller, getter, private

_graph_task: Callable[[], int] = private(
    "torch._C",
    "_current_graph_task_id",
    lambda: -1,
    "what activation checkpointing runs again counts as further calls",
)


def in_backward() -> bool:
    """Whether autograd is running: a forward then is a recomputation by activation checkpointing."""
    return _graph_task() != -1


current_node: Callable[[], Node | None] = private(
    "torch._C",
    "_current_autograd_node",
    lambda: None,
    "full backward hooks are matched with calls by their order, and reentrant checkpoints are not told apart",
)
"""The node that autograd is running; None outside of a backward pass."""

sequence_number: Callable[[Node], int] = caller(
    Node,
    "_sequence_nr",
    lambda node: 0,
    "nodes have no order: full backward hooks, and gradients of inputs before torch 2.15, may be of other calls",
)
"""When a node was made, counted in its thread: a later node has a greater number."""

next_sequence_number: Callable[[], int] = private(
    "torch._C._autograd",
    "_get_sequence_nr",
    lambda: 0,
    "nodes that a call makes are not told from earlier ones, nor the regions of reentrant checkpoints",
)
"""The number that autograd will give to the next node of this thread."""

tracing_context: Callable[[], Any] = private(
    "torch._guards.TracingContext",
    "try_get",
    lambda: None,
    "nodes that torch.compile makes while it traces are listed as if they had run",
)
"""None unless torch.compile is at work: the graph that is made then is for tracing, and never runs."""

keeping_versions: Callable[[tuple[Tensor, ...]], AbstractContextManager[Any]] = private(
    "torch.autograd.grad_mode",
    "_unsafe_preserve_version_counter",
    lambda tensors: nullcontext(),
    "backward through a graph that you made before the run may be refused",
)
"""A block after which these tensors, which hold what they held before, have the versions that they had before."""


queue_callback: Callable[[Callable[[], None]], None] = getattr(graph, "queue_callback", None) or private(
    "torch.autograd.Variable._execution_engine",
    "queue_callback",
    lambda callback: None,
    "hooks of the kind engine_callback never fire",
)
"""Have autograd call back when the backward pass that is running is over; public since torch 2.15."""

# Hooks on what autograd saves for backward.

saved_tensor_hooks: Callable[[], tuple[Any, Any] | None] = partial(
    private(
        "torch._C._autograd",
        "_top_saved_tensors_default_hooks",
        lambda ignore_tracing: None,
        "regions of activation checkpointing are not told apart, and torch.func fails while saved tensors are watched",
    ),
    True,
)
"""The hooks on saved tensors that are in force in this thread: the function that packs, the one that unpacks."""

push_saved_tensor_hooks: Callable[[Any, Any], None] = private(
    "torch._C._autograd",
    "_push_saved_tensors_default_hooks",
    lambda pack, unpack: None,
    "saved tensors are no longer watched after torch.func",
)
pop_saved_tensor_hooks: Callable[[], None] = private(
    "torch._C._autograd",
    "_pop_saved_tensors_default_hooks",
    lambda: None,
    "torch.func fails while saved tensors are watched",
)

# Hooks on tensors.

tensor_hooks: Callable[[Tensor], dict[int, Any] | None] = getter(
    Tensor,
    "_backward_hooks",
    lambda tensor: None,
    "hooks on tensors are not listed, and may come before hookcli's or be dropped by hooks in C++",
)
"""The table of the hooks that `Tensor.register_hook` put on a tensor, in the order of calling; None: no hook yet."""

post_accumulate_grad_hooks: Callable[[Tensor], dict[int, Any] | None] = getter(
    Tensor,
    "_post_accumulate_grad_hooks",
    lambda tensor: None,
    "hooks on accumulated gradients are not listed, and one that drops .grad may come before hookcli's",
)
"""The table of the hooks that `register_post_accumulate_grad_hook` put on a parameter; None: no hook yet."""


def saved_result(relu: Node) -> Tensor | None:
    """The output that a ReLU's node saved for backward. Raises RuntimeError where it was changed in place since."""
    lost = "dead units of ReLUs that are called as functions are not counted"
    found: Tensor | None = private(relu, "_saved_result", None, lost)
    return found
