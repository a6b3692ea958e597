"""Runs without gradients of models that need them: those that differentiate in their forward, as for forces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hookcli.engine.step import Step
from hookcli.errors import ModelError, message_of
from hookcli.table.meta import Meta

T = TypeVar("T")

GRADIENTS = "on, since the model fails without them"
"""The entry `gradients` of `meta`, for a run that would have had none."""


def need_gradients(error: ModelError, step: Step) -> bool:
    """True if the error of a run without gradients may be due to that: it speaks of gradients, or is an assertion."""
    if step.backward or step.gradients:
        return False
    root = error.__cause__ or error
    return isinstance(root, AssertionError) or "grad" in message_of(root).lower() or _DISCARDED in message_of(root)


_DISCARDED = "saved tensors were discarded"


def with_gradients(step: Step, info: Meta) -> Step:
    """The step with gradients on, which `info` says."""
    info["gradients"] = GRADIENTS
    return replace(step, gradients=True)


def again_with_gradients(attempt: Callable[[bool], T], step: Step) -> T:
    """The result of `attempt(False)`, without gradients; of `attempt(True)` if the model fails for the lack of them."""
    try:
        return attempt(False)
    except ModelError as error:
        if not need_gradients(error, step):
            raise
        error.__traceback__ = None  # its frames keep the first attempt's tensors
    return attempt(True)
