"""Runs on fake tensors, where meta tensors take another way than the CPU's.

`torch.autocast` leaves meta tensors alone, and recurrent layers compute one step after another on the meta device: the
CPU multiplies the inputs of all steps at once, and has oneDNN compute an LSTM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hookcli.engine.prepare import PreparedRun
from hookcli.errors import UsageError
from hookcli.hooks.torch_private.fake_tensors import FakeCpu
from hookcli.hooks.torch_private.modules import part_tables
from hookcli.tensors import tree


def autocast(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """A block in which operators run in this precision, as on the CPU; None: in that of their arguments."""
    return torch.autocast("cpu", dtype=dtype) if dtype is not None else nullcontext()


@contextmanager
def castable(run: PreparedRun, dtype: torch.dtype | None, device: str) -> Iterator[PreparedRun]:
    """The run with tensors that say they are on the CPU, where autocast or recurrent layers ask for that.

    Raises UsageError where this PyTorch lacks such tensors, and autocast needs them.
    """
    wanted = dtype is not None or (device == "cpu" and is_recurrent(run.model))
    fake = FakeCpu() if wanted and any(p.is_meta for p in run.model.parameters()) else None
    if fake is None or not (fake.available or dtype):
        yield run
        return
    if not fake.available:
        raise UsageError(f"--amp: torch {torch.__version__} has no fake tensors", option="amp")
    with ExitStack() as stack:
        _replace(run.model, fake)
        inputs = tree.replace(run.inputs, tree.once(lambda path, x: fake.tensor(x)))
        stack.enter_context(fake.mode())
        yield replace(run, inputs=inputs)


def is_recurrent(model: nn.Module) -> bool:
    """True if the model has an RNN, GRU or LSTM."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def _replace(model: nn.Module, fake: FakeCpu) -> None:
    """Replace the parameters and buffers in place; a tied one stays one."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for table in part_tables(module)[:2]:
            for name, tensor in table.items():
                if tensor is not None and id(tensor) not in made:
                    new = fake.tensor(tensor)
                    parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if parameter else new
                table[name] = made.get(id(tensor))
