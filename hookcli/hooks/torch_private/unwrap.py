"""How parts of a model are compiled, and how to compile one so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import getclosurevars
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from hookcli.hooks.torch_private.dynamo import compiles, is_compiled
from hookcli.tensors.torch_private import private

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Compiles a function."""
_CALL = "_compiled_call_impl"
_LOST = "a part that was compiled in place is compiled again by inductor"


def unwrapped(model: nn.Module) -> dict[str, Compile]:
    """Have the model, which has no wrappers (see `as_written`), run uncompiled, for good.

    Returns, by fqn, how the outermost compiled modules had their forward compiled. A forward that is decorated in its
    class stays compiled.
    """
    compiled: dict[str, Compile] = {}
    module: Any
    for fqn, module in [*model.named_modules()] if compiles() else ():
        own: dict[str, Any] = vars(module)
        way: Compile | None = None
        if call := own.get(_CALL):  # compiled by `module.compile()`
            setattr(module, _CALL, None)
            way = _way_of(call)
        elif is_compiled(module.forward) and "forward" in own:
            way, before = _way_of(module.forward), module.forward._torchdynamo_orig_callable
            del module.forward
            if before != module.forward:
                module.forward = before
        elif is_compiled(module.forward):  # by its class
            way = lambda forward: forward  # noqa: E731
        if way and not any(not outer or fqn.startswith(f"{outer}.") for outer in compiled):
            compiled[fqn] = way
    return compiled


def compiler(settings: Mapping[str, Any]) -> Compile:
    """torch.compile with these arguments, of which one is a backend or mode.

    Programs of inductor draw the random numbers of eager mode where that can be asked for.
    """
    inductor: Any = import_module("torch._inductor")
    if "mode" not in settings and settings["backend"] != "inductor":
        return partial(torch.compile, **settings)
    lost = "dropout in programs of inductor may draw other random numbers"
    options_of = private(inductor, "list_mode_options", None, lost)
    if options_of is None:
        return partial(torch.compile, **settings)
    options = {**options_of(settings.get("mode", "default")), "fallback_random": True}
    return partial(torch.compile, options=options)


def _way_of(function: Callable[..., Any]) -> Compile:
    """The compiler, with its backend and options, that made this of a function."""
    way: Compile = private(SimpleNamespace(**getclosurevars(function).nonlocals), "self", torch.compile, _LOST)
    return way
