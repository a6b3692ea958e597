"""Mixed precision by `torch.autocast`, which leaves meta tensors alone: a simulation has fake tensors instead."""

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
def castable(run: PreparedRun, dtype: torch.dtype | None) -> Iterator[PreparedRun]:
    """The run with tensors that autocast casts, in a block in which operators take them.

    Raises UsageError where this PyTorch lacks such tensors.
    """
    if dtype is None or not any(p.is_meta for p in run.model.parameters()):
        yield run
        return
    fake = FakeCpu()
    if not fake.available:
        raise UsageError(f"--amp: torch {torch.__version__} has no fake tensors", option="amp")
    with ExitStack() as stack:
        _replace(run.model, fake)
        inputs = tree.replace(run.inputs, tree.once(lambda path, x: fake.tensor(x)))
        stack.enter_context(fake.mode())
        yield replace(run, inputs=inputs)


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
