"""Runs a model under torch.compile, on batches of several sizes, for the checks of graph breaks and recompilations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.engine import failure
from hookcli.engine.eval_runs import batch_size
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.engine.setting import compile_settings
from hookcli.engine.step import Step
from hookcli.errors import ModelError, UserCode, in_brief
from hookcli.hooks.compilations import CompilationLog
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.compilations import compiling_anew, tells_of_compilations
from hookcli.hooks.torch_private.dynamo import compiled_graphs
from hookcli.table.compilation import Compilation
from hookcli.tensors import tree

_MOST = 10  # runs on the batch itself, of which the second needs no compilation; the limit is at 8 compilations
_MORE = (1, 2)  # items more in the batches after these


def compile_run(run: PreparedRun, word: str, backward: bool) -> Compilation | None:
    """Run the model compiled: on its batch until nothing is compiled again, then with one and with two items more.

    `backward`: with gradients. A model that is compiled already, or has compiled parts, runs as it is. Code that the
    process has compiled before is dropped (torch.compiler.reset), before and after. None if this PyTorch tells nothing
    of compilations. Raises ModelError if the model fails on its own batch.
    """
    settings, inputs = compile_settings(word), arguments(run.inputs)
    ours = not compiled_graphs(run.model)
    with compiling_anew(), preserved(run.model, inputs):
        log = CompilationLog()
        with UserCode(lambda error: ModelError(f"under torch.compile ({word}): {failure.describe(error)}")):
            model: Any = torch.compile(run.model, **settings) if ours else run.model
            for number in range(_MOST):
                _step(model, inputs, backward)
                if not log.read() and number:
                    break
        size = batch_size(inputs)
        sizes, untried = ([size], "") if size else ([], "the inputs have no common dimension 0 of two or more")
        for other in (size + more for size in tuple(sizes) for more in _MORE):
            try:
                _step(model, tree.replace(inputs, tree.once(partial(_resized, other))), backward)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a model need not take other sizes
                untried = f"a batch of {other} fails ({in_brief(error)})"
                break
            sizes.append(other)
        made = log.result() or Compilation() if tells_of_compilations() else None
    return made and replace(made, untried=untried, backend=word if ours else "", batches=sizes)


def _step(model: nn.Module, inputs: Any, backward: bool) -> None:
    """One forward, and one backward from random vectors; the loss is not compiled, and may need targets of one size."""
    args, kwargs = inputs
    Step(backward=backward, otherwise="randn").run(HookSession(model), args, kwargs, {})
    for parameter in model.parameters():
        parameter.grad = None


def _resized(size: int, path: str, x: Tensor) -> Tensor:
    """A tensor of more items: the first ones once more."""
    return x[torch.arange(size, device=x.device) % x.size(0)]
