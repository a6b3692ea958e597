"""Runs a model once more and reads the graph: for parameters made in forward, and a backward that ignores gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import ref

import torch
from torch import nn

from hookcli.engine.preserve import copied, preserved_with_attributes
from hookcli.errors import ModelError, UserCode, in_brief
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.torch_private.nodes import own_function, returned
from hookcli.system.unheard import unheard
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs

Batch = tuple[Args, Kwargs]
T = TypeVar("T")
_OWN = UserCode(lambda error: ModelError(in_brief(error)))


def put_back_after(module: nn.Module, batch: Batch, run: Callable[[], T]) -> T | None:
    """What `run` returns, which may run the model on this batch; None if the model fails.

    The model, the batch and all random states are afterwards as before.
    """
    try:
        with unheard(), preserved_with_attributes(module, batch):
            return run()
    except ModelError:
        return None


def graph_faults(module: nn.Module, batch: Batch) -> str:
    """Words on what is wrong in the graph of a forward with this batch; "" if nothing is, or if it fails."""
    name, made = put_back_after(module, batch, partial(faults_in_graph, module, batch)) or ("", [])
    if name:
        return f"the backward of {name} gives the same whatever gradient it gets: multiply by grad_output"
    anew = [shape for parameter, shape in made if parameter() is None]  # else somebody keeps it
    if not anew:
        return ""
    more = f" and {len(anew) - 1:,} more" if anew[1:] else ""
    return f"its forward makes a new parameter of shape {anew[0]}{more} in each call, which no optimizer can train"


def faults_in_graph(module: nn.Module, batch: Batch) -> tuple[str, list[tuple[ref[nn.Parameter], str]]]:
    """Run a forward. Returns the first of the program's Functions whose backward gives the same for each gradient, and
    the parameters in the graph that are none of the module's, with their shapes.

    A derivative is linear: for a gradient of 0 it is 0.
    """
    args, kwargs = copied(batch)
    with torch.enable_grad(), _OWN:
        outputs = tree.tensors(module(*args, **kwargs))
    nodes = [*walk(x.grad_fn for x in outputs if x.grad_fn is not None)]
    own = ((node, name) for node in nodes if (name := own_function(node)))
    name = next((name for node, name in own if ignores_gradient(node)), "")
    own_ids = {id(p) for p in module.parameters()}
    variables = (getattr(node, "variable", None) for node in nodes)
    others = (one for one in variables if isinstance(one, nn.Parameter) and id(one) not in own_ids)
    largest_first = sorted(others, key=lambda one: -one.numel())
    return name, [(ref(one), tree.shape_text(one)) for one in largest_first]


def ignores_gradient(node: Any) -> bool:
    """True if this node's backward gives the same numbers, not all 0, for gradients of 0 and of 1."""
    outputs = [(tuple(made.shape), made.dtype, made.device) for made in returned(node)]
    answers = []
    for value in (0.0, 1.0):
        gradients = [torch.full(shape, value, dtype=dtype, device=device) for shape, dtype, device in outputs]
        with torch.no_grad(), _OWN:
            answers.append(tree.tensors(node.apply(*gradients)))
    zeros, ones = answers
    same = len(zeros) == len(ones) and all(map(torch.equal, zeros, ones))
    return same and any(bool(x.any()) for x in zeros)
