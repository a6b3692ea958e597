"""`hookcli.watch`: observe a model while the caller's own code runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, overload

from torch import nn

from hookcli.engine.probing import Edits, Probing, make_probes, of_hooks, parse_edits
from hookcli.engine.run_info import describe_run
from hookcli.errors import UsageError
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.parts import Select
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.looked_programs import own_programs_within
from hookcli.hooks.torch_private.programs import backends_of, inside_wrapper
from hookcli.probes.base import Probe
from hookcli.record.arguments import check_arguments
from hookcli.record.model_recording import ModelRecording
from hookcli.reporters.report_page import ReportList
from hookcli.table.meta import Meta


class Watch:
    """The probes at work in a `watch` block; `reports()` gives what they have seen so far."""

    def __init__(self, session: HookSession, probing: Probing) -> None:
        self.session = session
        self._probing = probing

    def reports(self) -> ReportList:
        """A report per probe, which notebooks show as one page. On an accelerator this waits for the statistics."""
        return ReportList(self._probing.reports(complete=True))


@overload
def watch(
    model: nn.Module,
    probes: str | Sequence[str | Probe] = ("activations",),
    *,
    edits: str | Edit | Sequence[str | Edit] = (),
    select: Select | None = None,
    fastpath: bool = True,
    ops: str | None = None,
    name: str | None = None,
    inside_compiled: bool = False,
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
    max_seconds: float | None = None,
    check: bool = False,
    hist: bool = False,
    no_grad: int = ...,
    ops: str | None = None,
    time: bool = ...,
    **of_parts: Any,
) -> ModelRecording: ...


def watch(model: nn.Module, probes: Any = None, *, every: int | None = None, **settings: Any) -> object:
    """Observe a model while the caller's own code runs it.

    Around a step: the `with` block gives a Watch, whose `reports()` return what the probes ("activations" by default)
    have measured so far. Only the hooks are removed afterwards; what the step did to the model stays. Rows grow with
    the number of forwards; of several backward passes, the gradients of the last one are kept. With `inside_compiled`,
    compiled functions run programs with looks in the block, which may move last bits; a record says if they do.

    Around a whole training, with `every=100`: every 100th step goes into a record, as with `hookcli run`. See
    ModelRecording for `output` and the other settings.
    """
    arguments = {"model": model, **settings}
    if every is None:
        of_training = "is for the record of a whole training; add every=100"
        check_arguments(_around_step, arguments, ModelRecording, of_training)
        return _around_step(model, ("activations",) if probes is None else probes, **settings)
    arguments["every"] = every
    check_arguments(ModelRecording, arguments, _around_step, "is for a single step; leave out every")
    return ModelRecording(model, every=every, **settings, **({} if probes is None else {"probes": probes}))


@contextmanager
def _around_step(
    model: nn.Module,
    probes: str | Sequence[str | Probe],
    *,
    edits: Edits = (),
    select: Select | None = None,
    fastpath: bool = True,
    ops: str | None = None,
    name: str | None = None,
    inside_compiled: bool = False,
) -> Iterator[Watch]:
    """Attach the probes around a step that the caller runs; see `hookcli.watch`."""
    chosen = [probe.in_callers_run() for probe in make_probes(probes)]
    backends = backends_of(model) if inside_compiled else []
    if backends:
        of_probes = {f"probe {probe.name}": not probe.inside_compiled for probe in chosen}
        for what, needs_whole in {**of_probes, "edits": edits, "ops": ops}.items():
            if needs_whole:
                raise UsageError(f"inside_compiled and {what}: compiled programs don't show it; give one of them")
    fastpath = fastpath and all(p.fastpath for p in chosen if p.values)
    changes = parse_edits(edits, model, backward=True)
    session = HookSession(
        inside_wrapper(model) if backends else model,
        select=select,
        fastpath=fastpath,
        edits=changes,
        ops=ops,
        follow=True,
        inside_compiled=bool(backends),
    )
    with session, own_programs_within() if backends else nullcontext():
        info: Meta = {**describe_run(model, ()), **of_hooks(fastpath, changes, ops)}
        if inside_compiled:
            info["compiled"] = f"seen inside, by {'; '.join(backends)}" if backends else "nothing is compiled"
        probing = Probing(chosen, name or type(model).__name__, info)
        probing.attach(session)
        yield Watch(session, probing)
