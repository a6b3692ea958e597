"""Restores a model, its inputs and the random number generators after a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.engine.preserve.values import SavedValues, copied, unchanged_versions
from hookcli.hooks.torch_private.modules import part_tables
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators, random_states, set_random_states
from hookcli.tensors.torch_private import is_view

__all__ = ["SavedValues", "copied", "preserved", "set_mode"]


@contextmanager
def preserved(model: nn.Module, inputs: Any, *, parameters: bool = True) -> Iterator[None]:
    """Put the model, the inputs and the random number generators back as they were, bit for bit.

    Restored are the model's tables of parameters, buffers and submodules, the values in them, `.grad`, `requires_grad`
    and training modes; the values of the inputs' tensors; and PyTorch's, Python's and numpy's generators. Other
    attributes of modules stay as the run left them, and lazy modules stay initialized. In the block every `.grad` is
    None. `parameters=False` leaves out the values of parameters, whose copies double their memory.
    """
    devices = accelerators(model, inputs)
    states = random_states(devices)
    modules = [_Module(module) for module in model.modules()]
    leaves = [x for _, x in tree.leaves(inputs)]
    tensors = [*(model.parameters() if parameters else ()), *model.buffers(), *leaves]
    kept = SavedValues(tensors)
    gradients = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    with ExitStack() as stack:
        stack.callback(set_random_states, devices, states)
        stack.enter_context(unchanged_versions(tensors))
        stack.callback(_restore_gradients, gradients)
        stack.callback(kept.put_back)
        for module in modules:
            stack.callback(module.put_back)
        for parameter, _, _ in gradients:
            parameter.grad = None
        yield


def set_mode(model: nn.Module, training: bool) -> None:
    """Call `model.train(training)`; parts made by torch.export refuse, and keep the mode that they were exported in."""
    try:
        model.train(training)
    except NotImplementedError:
        for module in model.modules():
            if "train" not in vars(module):
                module.training = training


def _restore_gradients(gradients: list[tuple[nn.Parameter, Tensor | None, bool]]) -> None:
    for parameter, grad, requires_grad in gradients:
        parameter.grad = grad
        if parameter.requires_grad != requires_grad:
            parameter.requires_grad_(requires_grad)


class _Module:
    """A module's training mode and its tables of parameters, buffers and submodules, at the time of its creation."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._training = module.training
        scripted = isinstance(module, torch.jit.ScriptModule)  # its tables never change
        tables = [] if scripted else part_tables(module)
        # PyTorch exchanges sharded parameters in the course of a run.
        sharded = any(p is not None and tree.is_sharded(p) for table in tables[:1] for p in table.values())
        self._tables = [] if sharded else [(table, dict(table)) for table in tables]
        self._attributes = dict(vars(module)) if self._tables else {}

    def put_back(self) -> None:
        """Restore both, and detach buffers that the run made part of a graph."""
        if self._module.training != self._training:
            self._module.training = self._training
        for table, before in self._tables:
            if [*table] == [*before] and all(table[name] is part for name, part in before.items()):
                continue
            names = {*table, *before}
            table.clear()
            table.update(before)
            for name in names:  # the run may have given those of plain attributes to parts
                if name in self._attributes:
                    vars(self._module)[name] = self._attributes[name]
                else:
                    vars(self._module).pop(name, None)
        for _, before in self._tables[1:2]:
            for buffer in before.values():
                if buffer is not None and buffer.grad_fn is not None and not is_view(buffer):
                    buffer.detach_()
