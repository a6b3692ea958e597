"""`hookcli.watch`: observe a model while the caller's own code runs it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, overload

from torch import nn

from hookcli.engine.watch import Watch, watched
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.select import Select
from hookcli.probes.base import Probe
from hookcli.record.model_recorder import Recording


@overload
def watch(
    model: nn.Module,
    probes: str | Sequence[str | Probe] = ("activations",),
    *,
    edits: str | Edit | Sequence[str | Edit] = (),
    select: Select | None = None,
    fastpath: bool = True,
    name: str | None = None,
) -> AbstractContextManager[Watch]: ...


@overload
def watch(
    model: nn.Module,
    probes: str | Sequence[str] = ...,
    *,
    every: int,
    output: str | Path | None = None,
    steps: str | None = None,
    match: str | None = None,
    first_bad: str | None = None,
    max_seconds: float | None = None,
    check: bool = False,
    hist: bool = False,
    keep_bad: str | Path | None = None,
    no_grad: int = ...,
) -> Recording: ...


def watch(model: nn.Module, probes: Any = None, *, every: int | None = None, **settings: Any) -> Any:
    """Observe a model while the caller's own code runs it.

    Around a step: the `with` block gives a Watch, whose `reports()` return what the probes ("activations" by default)
    have measured so far. Only the hooks are removed afterwards; what the step did to the model stays. Rows grow with
    the number of forwards; of several backward passes, the gradients of the last one are kept.

    Around a whole training, with `every=100`: every 100th step goes into a record, as with `hookcli run`. See Recording
    for `output` and the other settings.
    """
    if every is None:
        return watched(model, ("activations",) if probes is None else probes, **settings)
    return Recording(model, every=every, **settings, **({} if probes is None else {"probes": probes}))
