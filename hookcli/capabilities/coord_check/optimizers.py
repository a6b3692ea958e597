"""The optimizer of each training: one of PyTorch's by name, or what a function of the user's own makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from hookcli.engine import failure
from hookcli.errors import ModelError, UsageError, UserCode, class_name, unknown
from hookcli.system.importing import load_object

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
NAMED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}
RATE = 1e-3


def optimizer_maker(text: str, rate: float | None) -> MakeOptimizer:
    """The function that makes the optimizer of a model, from its name or from `file.py:fn`, at this learning rate.

    A function takes the model, or the parameters to train if its first argument's name begins with "param"; it gets the
    rate as `lr`, if one was asked for. Raises UsageError for an unknown name, and for a function that takes no `lr`.
    """
    if text in NAMED:
        return partial(made, NAMED[text], text, True, {"lr": RATE if rate is None else rate})
    if ":" not in text:
        raise UsageError(f"{unknown('--optimizer', text, [*NAMED])}, or your own as file.py:fn", option="optimizer")
    function = load_object(text)
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"--optimizer {text} is {class_name(function)}: name a function", option="optimizer"
        ) from error
    if rate is not None and not any(p.name == "lr" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise UsageError(f"--lr {rate:g}: {text} takes no argument lr; leave out --lr", option="lr")
    takes_parameters = parameters[0].name.startswith("param") if parameters else False
    return partial(made, function, text, takes_parameters, {} if rate is None else {"lr": rate})


def made(
    function: Callable[..., Any], text: str, takes_parameters: bool, settings: dict[str, float], model: nn.Module
) -> torch.optim.Optimizer:
    """The optimizer that the function makes. Raises ModelError where it fails, UsageError if it returns another thing,
    and for a model without parameters to train.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise UsageError("no parameter requires grad, so nothing can be trained")
    with UserCode(lambda error: ModelError(f"--optimizer {text} failed: {failure.describe(error)}")):
        optimizer = function(trained if takes_parameters else model, **settings)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"--optimizer {text} returned {class_name(optimizer)}, not an optimizer", option="optimizer")
    return optimizer
