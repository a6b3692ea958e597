"""Replaces functions of PyTorch while a session runs, where PyTorch has no hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from hookcli.tensors.torch_private import private

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def replaced(owner: Any, name: str, wrapper: Wrapper, lost: str) -> Iterator[None]:
    """Replace `owner.name` by `wrapper(owner.name)` in this block.

    If PyTorch has no such function, nothing is replaced, and `lost` becomes a note.
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
