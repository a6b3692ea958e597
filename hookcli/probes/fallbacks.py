"""Repeated runs with fewer hooks, for models that PyTorch refuses to run, or would run differently, under all hooks of
a probe.
"""

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


def leave_out(session: HookSession, found: OneTensorError | None) -> None:
    """Have the session leave out full backward hooks that would change what the model computes."""
    if found is not None:
        session.full_backward.leave_out(found)


def left_out(found: OneTensorError | None, path: str = "", otherwise: str = "") -> list[Skipped]:
    """The modules that were left out so."""
    return [Skipped(fqn, _ONE_TENSOR + otherwise, path) for fqn in sorted(found.fqns)] if found else []


_ONE_TENSOR = (
    "it receives or returns one tensor in several places, and full backward hooks would make several tensors of it"
)


def with_fallbacks(
    probes: Sequence[Probe],
    attempt: Callable[[Sequence[Probe]], T],
    final: Callable[[HookcliError], bool] | None = None,
) -> T:
    """`attempt(probes)`; where it fails, again with what the probes offer instead, as long as one has another to offer.

    Probes that have none take part again as they were before. After an error that is `final` there is no other attempt.
    Where the last attempt fails as the first did, the probes' hooks were not the reason: the error then has the reports
    of the first.
    """
    first: tuple[str, tuple[Any, ...]] | None = None
    while True:
        fresh = _states(probes)
        try:
            return attempt(probes)
        except HookcliError as error:
            others = [] if final and final(error) else [probe.instead(error) for probe in probes]
            if not any(others) or (fresh is None and not all(others)):
                error.reports = first[1] if first and first[0] == str(error) else error.reports
                raise
            first = first or (str(error), error.reports)
            error.__traceback__ = None  # its frames keep a checkpointed region open, which torch 2.11 leaves to them
        probes = [other or _renewed(probes[n], fresh, n) for n, other in enumerate(others)]


def fails_without_gradients(error: BaseException) -> bool:
    """True if the model's error has nothing to do with gradients, so that it comes again without them.

    Errors of shapes, dtypes and names are such; one that speaks of gradients is not, nor one of no known kind.
    """
    root = error.__cause__ or error
    text = message_of(root).lower()
    if any(word in text for word in _OF_GRADIENTS):
        return False
    return isinstance(root, _OF_CODE) or any(word in text for word in _OF_SHAPES)


_OF_GRADIENTS = ("grad", "leaf", "leaves", "inplace", "in-place", "backward", "derivative", "differentiat", "saved")
_OF_CODE = (TypeError, NameError, AttributeError, LookupError, ImportError, ArithmeticError)
_OF_SHAPES = ("shape", "size", "dimension", "channel", "dtype", "scalar type")


def _states(probes: Sequence[Probe]) -> list[dict[str, Any]] | None:
    """The attributes of probes before a run that may have to be made again; None where they can't be copied."""
    if len(probes) < 2 or not any(map(offers_another, probes)):
        return None
    try:
        return [copy.deepcopy(vars(probe)) for probe in probes]
    except Exception:  # a probe of someone's own may hold anything
        return None


def _renewed(probe: Probe, fresh: list[dict[str, Any]] | None, number: int) -> Probe:
    assert fresh is not None
    vars(probe).clear()
    vars(probe).update(fresh[number])
    return probe
