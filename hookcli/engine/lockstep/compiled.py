"""Compiles parts of a model, each by itself, for the time of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from hookcli.errors import UsageError, unknown
from hookcli.hooks.observing_mode import without_mode
from hookcli.hooks.torch_private.dynamo import use_fake_tensors
from hookcli.hooks.unhooked import compiled_parts
from hookcli.table.names import is_within_any, no_match


def outermost(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules that match a glob and lie in no other that matches; "(model)" and `*` match the whole model.

    Raises UsageError if none matches.
    """
    found: dict[str, nn.Module] = {}
    for fqn, module in model.named_modules():
        if (fnmatchcase(fqn, pattern) or (not fqn and pattern == "(model)")) and not is_within_any(fqn, found):
            found[fqn] = module
    if not found:
        raise UsageError(f"--compile: {no_match(pattern, dict(model.named_modules()), 'module')}")
    return found


UNSEEN = "part of a compiled module, where no hook fires (to compare parts, give --compile a glob that matches them)"


def unseen_parts(model: nn.Module, pattern: str | None) -> set[str]:
    """The modules whose hooks do not fire, since they lie in modules that are compiled, or that match the pattern."""
    chosen = outermost(model, pattern) if pattern else {}
    return {fqn for fqn, _ in model.named_modules() if is_within_any(fqn, chosen)} | {*compiled_parts(model)}


@contextmanager
def compiled(model: nn.Module, pattern: str, backend: str) -> Iterator[None]:
    """Compile the forward of the outermost modules that match. Their own hooks fire as before, those inside don't.

    Raises UsageError for an unknown backend.
    """
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise UsageError(unknown("--compile-backend", backend, known))
    # Inductor's dropout would draw other random numbers than eager mode does.
    options: Any = {"fallback_random": True} if backend == "inductor" else None
    use_fake_tensors()  # the sides run in threads of their own
    with ExitStack() as stack:
        for module in outermost(model, pattern).values():
            own = vars(module).get("forward")
            put_back = (setattr, module, "forward", own) if own else (delattr, module, "forward")
            module.forward = without_mode(torch.compile(module.forward, backend=backend, options=options))
            stack.callback(*put_back)
        yield
