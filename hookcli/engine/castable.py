"""Runs whose tensors on the meta device say that they are on the CPU, as autocast and recurrent layers ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from hookcli.engine.prepare import PreparedRun
from hookcli.errors import UsageError
from hookcli.hooks.torch_private.meta_operators import FakeCpu
from hookcli.tensors import tree


@contextmanager
def castable(run: PreparedRun, dtype: torch.dtype | None, device: str) -> Iterator[PreparedRun]:
    """The run with tensors that say they are on the CPU, where autocast or recurrent layers ask for that.

    `torch.autocast` leaves meta tensors alone, and recurrent layers compute one step after another on the meta device:
    the CPU multiplies the inputs of all steps at once, and has oneDNN compute an LSTM. Raises UsageError where this
    PyTorch lacks such tensors, and autocast needs them.
    """
    recurrent = device == "cpu" and any(isinstance(module, nn.RNNBase) for module in run.model.modules())
    if (dtype is None and not recurrent) or not any(p.is_meta for p in run.model.parameters()):
        yield run
    elif (fake := FakeCpu()).available:
        fake.convert(run.model)
        inputs = tree.replace(run.inputs, tree.once(lambda path, x: fake.tensor(x)))
        with fake.mode:
            yield replace(run, inputs=inputs)
    elif dtype is None:
        yield run
    else:
        raise UsageError(f"--amp: torch {torch.__version__} has no fake tensors", option="amp")
