"""Runs a model in eval mode, on the same batch once or several times."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hookcli.engine import failure
from hookcli.engine.gradients import again_with_gradients
from hookcli.engine.outputs import Output, plain, unchanged
from hookcli.engine.preserve import SavedValues, copied, preserved, set_mode
from hookcli.engine.step import Step
from hookcli.errors import ModelError, UserCode
from hookcli.hooks.parts import uncompiled
from hookcli.tensors import tree
from hookcli.tensors.containers import hidden_tensors
from hookcli.tensors.random_state import accelerators, random_states, set_random_states

Arguments = tuple[tuple[object, ...], dict[str, object]]


@contextmanager
def warnings_left_out() -> Iterator[None]:
    """Show no warnings in a run without gradients that the user did not ask for.

    Some are due to that alone ("None of the inputs have requires_grad=True"); others come with gradients, too.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def in_eval(model: nn.Module, gradients: bool = False) -> Iterator[None]:
    """Set eval mode, and restore each module's own mode after the block. Warnings are shown of runs with gradients.

    `train(mode)` is called because a module may override it (a low-rank adapter merges itself into the weight, and out
    again up to rounding), then flags are set for parts whose mode differed from the model's.
    """
    modes = [(module, module.training) for module in model.modules()]
    overriding = [module for module, _ in modes if type(module).train is not nn.Module.train]
    held = SavedValues(p for module in overriding for p in module.parameters())
    mode = model.training
    set_mode(model, False)
    try:
        with nullcontext() if gradients else warnings_left_out():
            yield
    finally:
        set_mode(model, mode)
        for module, training in modes:
            module.training = training
        held.put_back()


class EvalRuns(NamedTuple):
    """The outputs of each run; whether random numbers were drawn; the buffers that changed; the second run's error;
    whether gradients were on, since the model fails without; and of each run the tensors in the attributes of objects
    that it returned, such as distributions.
    """

    outputs: Sequence[Output]
    drew: bool = False
    changed: Sequence[str] = ()
    failed: str = ""
    gradients: bool = False
    hidden: Sequence[Output] = ()


def run_in_eval(model: nn.Module, inputs: Arguments, times: int = 1, place: str = "") -> EvalRuns:
    """Run the model in eval mode with gradients off, or on if it fails without them. Raises as `eval_runs`."""
    return again_with_gradients(partial(eval_runs, model, inputs, times, place=place), Step())


def eval_runs(model: nn.Module, inputs: Arguments, times: int, gradients: bool, place: str = "") -> EvalRuns:
    """Run the model in eval mode, each time with the same random numbers.

    The model and its inputs are afterwards as before. Raises ModelError, which begins with `place`, if the first run
    fails.
    """
    devices, explaining = accelerators(model, inputs), UserCode(lambda error: failure.explain(error, model, place))
    with (
        explaining,
        uncompiled(model),
        preserved(model, inputs),
        in_eval(model, gradients),
        torch.set_grad_enabled(gradients),
    ):
        before = random_states(devices)
        buffers = {name: x.clone() for name, x in model.named_buffers() if not is_lazy(x)}
        returned = [_called(model, inputs)]
        drew = not random_states(devices).same(before)
        changed = [n for n, x in model.named_buffers() if n in buffers and not unchanged(buffers[n], x)]
        failed = ""
        for _ in range(times - 1):
            set_random_states(devices, before)
            try:
                with explaining:
                    returned.append(_called(model, inputs))
            except ModelError as error:
                failed = f"in eval mode, on the second run, {error}".replace("\n ", "")
        outputs, hidden = zip(*returned, strict=True)
        return EvalRuns(outputs, drew, changed, failed, gradients, hidden)


def _called(model: nn.Module, inputs: Arguments) -> tuple[Output, Output]:
    """The output on copies of the inputs, since it may share memory with them; and the tensors in objects there.

    What an object was given with the inputs, such as the labels of a graph batch, is left out.
    """
    args, kwargs = copied(inputs)
    unseen: tree.Unseen = []
    outputs = [plain(x.detach()) for _, x in tree.leaves(model(*args, **kwargs), unseen=unseen)]
    of_inputs = {id(x) for x in hidden_tensors(args, kwargs)}
    hidden = [plain(x.detach()) for x in hidden_tensors(*(x for _, x in unseen)) if id(x) not in of_inputs]
    return outputs, hidden
