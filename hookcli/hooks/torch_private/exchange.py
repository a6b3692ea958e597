"""Functions of PyTorch that are exchanged while a session runs, where PyTorch has no hook for what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from hookcli.tensors.torch_private import private

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def replaced(owner: Any, name: str, wrapper: Wrapper, lost: str) -> Iterator[None]:
    """Exchange a function for what `wrapper` makes of it, while the block runs.

    Where PyTorch has no such function nothing is exchanged, and `lost` becomes a note.
    """
    original = private(owner, name, None, lost)
    if original is None:
        yield
        return
    ours = wraps(original)(wrapper(original))
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if getattr(owner, name) is ours:  # what someone else has wrapped since stays
            setattr(owner, name, original)
