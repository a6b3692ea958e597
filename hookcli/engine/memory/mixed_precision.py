"""Runs on fake tensors, where meta tensors take another way than the CPU's.

`torch.autocast` leaves meta tensors alone, and recurrent layers compute one step after another on the meta device: the
CPU multiplies the inputs of all steps at once, and has oneDNN compute an LSTM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hookcli.engine.prepare import PreparedRun
from hookcli.errors import UsageError
from hookcli.hooks.torch_private.fake_tensors import FakeCpu
from hookcli.hooks.torch_private.modules import part_tables
from hookcli.tensors import tree


@contextmanager
def castable(run: PreparedRun, dtype: torch.dtype | None, device: str) -> Iterator[PreparedRun]:
    """The run with tensors that say they are on the CPU, where autocast or recurrent layers ask for that.

    Raises UsageError where this PyTorch lacks such tensors, and autocast needs them.
    """
    recurrent = device == "cpu" and any(isinstance(module, nn.RNNBase) for module in run.model.modules())
    if (dtype is None and not recurrent) or not any(p.is_meta for p in run.model.parameters()):
        yield run
    elif (fake := FakeCpu()).available:
        _replace(run.model, fake)
        inputs = tree.replace(run.inputs, tree.once(lambda path, x: fake.tensor(x)))
        with fake.mode:
            yield replace(run, inputs=inputs)
    elif dtype is None:
        yield run
    else:
        raise UsageError(f"--amp: torch {torch.__version__} has no fake tensors", option="amp")


def _replace(model: nn.Module, fake: FakeCpu) -> None:
    """Replace the parameters and buffers in place; a tied one stays one."""
    made: dict[int, Any] = {id(None): None}
    for table in (table for module in model.modules() for table in part_tables(module)[:2]):
        for name, tensor in table.items():
            if id(tensor) not in made:
                new = fake.tensor(tensor)
                made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
            table[name] = made[id(tensor)]
