"""The user's own models: `package.module:callable` or `path/to/file.py:callable`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from shlex import quote

import torch
from torch import nn

from hookcli.errors import ModelError, UsageError, UserCode, class_name, in_brief, refuse_coroutine, shortened, unknown
from hookcli.sources.base import Arguments, Recipe, Request, copy_model
from hookcli.system.importing import load_object
from hookcli.table.meta import AS_BUILT, WEIGHTS
from hookcli.tensors.weak import WeakIds

_CALL = re.compile(r"(.+?:[\w.]+)(\(.*\))", re.DOTALL)


class ImportPathSource:
    """A class or function that returns an nn.Module, or `(module, example inputs)`; or an nn.Module itself."""

    def recipe(self, request: Request) -> Recipe:
        if meant := without_call(request.spec):
            raise UsageError(f"{shortened(request.spec)!r} is a call: write {meant}")
        target = load_object(request.spec)
        if isinstance(target, nn.Module):
            if request.args:
                raise UsageError(f"{request.spec} is a module, not a function: remove --arg")
            return replace(_recipe(request, partial(copy_model, target)), ready=target)
        if not callable(target):
            raise UsageError(f"{request.spec} is {class_name(target)}: name a class or function that makes a model")
        _check_arguments(target, request)
        return _recipe(request, partial(target, **request.args))


def _recipe(request: Request, call: Callable[[], object]) -> Recipe:
    examples: WeakIds[nn.Module, Arguments | None] = WeakIds()

    def build() -> nn.Module:
        """The model; its example inputs come with it, or are Lightning's `example_input_array`."""
        model, example = call(), None
        if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], nn.Module):
            model, example = model
        refuse_coroutine(model, request.spec)
        if not isinstance(model, nn.Module):
            raise UsageError(f"{request.spec} returned {class_name(model)}, not an nn.Module")
        example = getattr(model, "example_input_array", None) if example is None else example
        if isinstance(example, Mapping):
            examples[model] = dict(example)
        else:
            example = (example,) if isinstance(example, torch.Tensor) else example
            examples[model] = None if example is None else tuple(example)
        return model

    return Recipe(request.spec.rpartition("/")[2], build, example=examples.get, meta={WEIGHTS: AS_BUILT})


def without_call(spec: str) -> str:
    """For `net.py:Net(8, 2)` what to type instead: `net.py:Net --arg width=8 --arg depth=2`; "" for a plain name."""
    match = _CALL.fullmatch(spec)
    if not match:
        return ""
    with suppress(SyntaxError, ValueError, RecursionError):
        call = ast.parse(f"f{match[2]}", mode="eval").body
        if isinstance(call, ast.Call):
            names = inspect.signature(load_object(match[1])).parameters
            named = dict(zip(names, map(ast.unparse, call.args), strict=False))
            named |= {one.arg: ast.unparse(one.value) for one in call.keywords if one.arg}
            return " ".join([quote(match[1]), *(f"--arg {quote(f'{name}={value}')}" for name, value in named.items())])
    return ""


def _check_arguments(target: Callable[..., object], request: Request) -> None:
    with UserCode(lambda error: ModelError(f"building {request.spec} failed: {in_brief(error)}")):
        try:
            signature = inspect.signature(target)
        except (TypeError, ValueError):
            return  # built in C, without a signature: its own error will say
    for name in request.args:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        if name not in signature.parameters and not takes_any:
            raise UsageError(unknown(f"argument of {request.spec}", name, signature.parameters))
    needed = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in request.args
    ]
    if needed:
        hint = " ".join(f"--arg {name}=..." for name in needed)
        raise UsageError(f"{request.spec} needs {'arguments' if len(needed) > 1 else 'an argument'}: give {hint}")
