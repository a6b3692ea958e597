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
NAMED: dict[str, Any] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
RATE = 1e-3


def optimizer_maker(text: str, rate: float | None) -> MakeOptimizer:
    """The function that makes the optimizer of a model, from its name or from `file.py:fn`, at this learning rate.

    A function takes the model, or the parameters to train if its first argument's name begins with "param". It gets the
    rate as `lr`, unless it has its own and none was asked for. Raises UsageError for what can't work.
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
    takes = next((p for p in parameters if p.name == "lr" or p.kind is p.VAR_KEYWORD), None)
    if rate is not None and takes is None:
        raise UsageError(f"--lr {rate:g}: {text} takes no argument lr; leave out --lr", option="lr")
    own = takes is None or takes.default is not takes.empty
    settings = {} if own and rate is None else {"lr": RATE if rate is None else rate}
    return partial(made, function, text, bool(parameters) and parameters[0].name.startswith("param"), settings)


def made(
    function: Callable[..., Any], text: str, takes_parameters: bool, settings: dict[str, float], model: nn.Module
) -> torch.optim.Optimizer:
    """The optimizer that a function makes. Raises ModelError where it fails, UsageError if it makes another thing."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise UsageError("no parameter requires grad, so nothing can be trained")
    with UserCode(lambda error: ModelError(f"--optimizer {text} failed: {failure.describe(error)}")):
        optimizer = function(trained if takes_parameters else model, **settings)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"--optimizer {text} returned {class_name(optimizer)}, not an optimizer", option="optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        what = f"{class_name(optimizer)} needs a closure"
        raise UsageError(f"--optimizer {text}: {what}, and can't be used here", option="optimizer")
    return optimizer
