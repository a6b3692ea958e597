"""Runs that are repeated with fewer hooks, where PyTorch refuses a probe's hooks or they would change the results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hookcli.errors import HookcliError, OneTensorError, message_of
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.table import Skipped

T = TypeVar("T")


def offers_another(probe: Probe) -> bool:
    """True if the probe may offer another in its place."""
    return type(probe).instead is not Probe.instead


def leave_out(session: HookSession, error: OneTensorError | None) -> None:
    """Have the session put no full backward hooks on the modules of this error, whose results they would change."""
    if error is not None:
        session.full_backward.leave_out(error)


def left_out(error: OneTensorError | None, path: str = "", otherwise: str = "") -> list[Skipped]:
    """The modules of this error, which got no full backward hooks."""
    return [Skipped(fqn, _ONE_TENSOR + otherwise, path) for fqn in sorted(error.fqns)] if error else []


_ONE_TENSOR = (
    "it receives or returns one tensor in several places, and full backward hooks would make several tensors of it"
)


def with_fallbacks(
    probes: Sequence[Probe],
    attempt: Callable[[Sequence[Probe]], T],
    final: Callable[[HookcliError], bool] | None = None,
) -> T:
    """Return `attempt(probes)`. If it fails, try again with the probes that these offer instead (`Probe.instead`).

    Probes that offer none are reset to their state before the attempt. The error is raised if no probe offers another,
    or if the error is `final`. If the last error has the same message as the first, the probes' hooks were not the
    reason, and the error gets the reports of the first attempt, which saw most.
    """
    first: tuple[str, tuple[Any, ...]] | None = None
    while True:
        fresh = states(probes) if len(probes) > 1 and any(map(offers_another, probes)) else None
        try:
            return attempt(probes)
        except HookcliError as error:
            others = [] if final and final(error) else [probe.instead(error) for probe in probes]
            if not any(others) or (fresh is None and not all(others)):
                error.reports = first[1] if first and first[0] == str(error) else error.reports
                raise
            first = first or (str(error), error.reports)
            error.__traceback__ = None  # its frames keep a checkpointed region open, which torch 2.11 leaves to them
        if fresh:
            kept = [number for number, other in enumerate(others) if not other]
            put_back([probes[number] for number in kept], [fresh[number] for number in kept])
        probes = [other or probe for other, probe in zip(others, probes, strict=True)]


def fails_without_gradients(error: BaseException) -> bool:
    """True if the model would fail in the same way without gradients, as with an error of shapes, dtypes or names.

    False for an error that mentions gradients, and for one of an unknown kind.
    """
    root = error.__cause__ or error
    text = message_of(root).lower()
    if any(word in text for word in _OF_GRADIENTS):
        return False
    return isinstance(root, _OF_CODE) or any(word in text for word in _OF_SHAPES)


_OF_GRADIENTS = ("grad", "leaf", "leaves", "inplace", "in-place", "backward", "derivative", "differentiat", "saved")
_OF_CODE = (TypeError, NameError, AttributeError, LookupError, ImportError, ArithmeticError)
_OF_SHAPES = ("shape", "size", "dimension", "channel", "dtype", "scalar type")


def states(probes: Sequence[Probe]) -> list[dict[str, object]] | None:
    """Copies of the probes' attributes before a run that may have to be repeated; None if they can't be copied.

    A sink is not part of a probe: it begins anew with each run.
    """
    sinks = [sink for probe in probes if (sink := vars(probe).get("sink")) is not None]
    try:
        return [copy.deepcopy(vars(probe), {id(sink): sink for sink in sinks}) for probe in probes]
    except Exception:  # a probe of someone's own may hold anything
        return None


def put_back(probes: Sequence[Probe], attributes: Sequence[dict[str, object]]) -> None:
    """Reset each probe to the attributes that it had."""
    for probe, state in zip(probes, attributes, strict=True):
        vars(probe).clear()
        vars(probe).update(state)
