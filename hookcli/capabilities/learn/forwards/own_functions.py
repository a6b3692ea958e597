"""The program's own autograd Functions whose backward does not use the gradient that it gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import Function
from torch.autograd.graph import Node

from hookcli.engine.preserve import copied, preserved_with_attributes
from hookcli.errors import ModelError, UserCode, in_brief
from hookcli.hooks.node_hooks import walk
from hookcli.hooks.program.global_hooks import subclasses
from hookcli.hooks.torch_private.nodes import returned
from hookcli.system.unheard import unheard
from hookcli.tensors import tree
from hookcli.tensors.tree import Args, Kwargs

_OWN = UserCode(lambda error: ModelError(in_brief(error)))


def ignoring_gradient(module: nn.Module, batch: tuple[Args, Kwargs]) -> str:
    """Words on the first of the program's Functions whose backward gives the same for each gradient; "" if none does.

    A derivative is linear: for a gradient of 0 it is 0. The model and all random states are afterwards as before.
    """
    if not any(map(is_own, subclasses(Function))):
        return ""
    try:
        with unheard(), preserved_with_attributes(module, batch), torch.enable_grad(), _OWN:
            args, kwargs = copied(batch)
            ends = [x.grad_fn for x in tree.tensors(module(*args, **kwargs)) if x.grad_fn is not None]
            name = next((name for node, name in own_functions(ends) if ignores_gradient(node)), "")
    except ModelError:
        return ""
    what = f"the backward of {name} gives the same whatever gradient it gets"
    return f"{what}: multiply by grad_output" if name else ""


def own_functions(ends: list[Node]) -> Iterator[tuple[Any, str]]:
    """The nodes of Functions that are not PyTorch's, each with the Function's name."""
    node: Any
    for node in walk(ends):
        kind = getattr(type(node), "_forward_cls", None)
        if kind is not None and is_own(kind):
            yield node, kind.__qualname__


def is_own(kind: type) -> bool:
    """True for a Function that is not PyTorch's."""
    return not kind.__module__.startswith(("torch.", "functorch."))


def ignores_gradient(node: Any) -> bool:
    """True if this node's backward gives the same numbers, not all 0, for gradients of 0 and of 1."""
    outputs = [(tuple(made.shape), made.dtype, made.device) for made in returned(node)]
    answers = []
    for value in (0.0, 1.0):
        given = [torch.full(shape, value, dtype=dtype, device=device) for shape, dtype, device in outputs]
        with torch.no_grad():
            answers.append(tree.tensors(node.apply(*given)))
    zeros, ones = answers
    same = len(zeros) == len(ones) and all(map(torch.equal, zeros, ones))
    return same and any(bool(x.any()) for x in zeros)
