"""Runs a model under hooks and returns what the probes saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from hookcli import registry
from hookcli.engine import failure
from hookcli.engine.preserve import preserved
from hookcli.engine.run_info import describe_run
from hookcli.engine.step import Loss, Share, Step
from hookcli.errors import ModelError, PluginError, UsageError, UserCode, in_brief
from hookcli.hooks.edits.base import Edit, check_applied, check_edits, parse_edit
from hookcli.hooks.modules import compiled_parts, uncompiled
from hookcli.hooks.session import HookSession, Select
from hookcli.probes.base import Probe
from hookcli.probes.fallbacks import offers_another, with_fallbacks
from hookcli.probes.unregistered import Strangers
from hookcli.report import Report


def capture(
    model: nn.Module,
    inputs: Any,
    probes: str | Sequence[str | Probe] = ("shapes",),
    *,
    loss: str | Loss | None = None,
    backward_vector: str | None = None,
    call: str = "backward",
    passes: int = 1,
    optimizer: str | None = None,
    state_dict: bool = False,
    edits: str | Edit | Sequence[str | Edit] = (),
    select: Select | None = None,
    fastpath: bool = True,
    globally: bool = False,
    restore: bool = True,
    share: Share | None = None,
    name: str | None = None,
    meta: Mapping[str, Any] | None = None,
    watch_session: Callable[[HookSession], object] | None = None,
) -> list[Report]:
    """Run the model once (`passes` times) on `inputs` and return a report per probe.

    `inputs` is a tensor, a tuple of positional arguments or a mapping of keyword arguments. With a probe that needs
    gradients there is a backward pass too: from `loss` (a function of the output, "sum", "mean" or "cross-entropy"; the
    sum by default), or with a `backward_vector` ("ones" or "randn") on every output; `call` "grad" makes it by
    `torch.autograd.grad`. `optimizer` ("sgd" or "adamw") takes a step, `state_dict` makes a round trip. `edits` change
    what flows, as `--edit` does. `share`: this process is one of several.

    The model (parameters, gradients, buffers, modes), the inputs and the random number generators are afterwards as
    they were before, also where the model changes them itself; `preserved` (hookcli/preserve) says what that covers. It
    takes a copy of the parameters. `restore=False` does without, for a model that is not used again: the parameters
    then hold what the run made of them. Where PyTorch refuses to run the model under a probe's hooks and the probe can
    do with fewer, the model is run again with these.

    Raises ModelError where the model fails; its `reports` hold what was seen until then. A KeyboardInterrupt passes
    through, with the same in its attribute `reports`.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"capture needs an nn.Module, not {type(model).__name__}")
    attempt = partial(
        _captured,
        model,
        inputs,
        Step(False, loss, backward_vector, call, optimizer, state_dict, share or Share()),
        partial(HookSession, model, select=select, globally=globally),
        edits=edits,
        passes=passes,
        fastpath=fastpath,
        restore=restore,
        name=name or type(model).__name__,
        meta=meta or {},
        watch_session=watch_session,
    )
    return with_fallbacks(_probes(probes), attempt)


def _captured(
    model: nn.Module,
    inputs: Any,
    step: Step,
    make_session: Callable[..., HookSession],
    probes: Sequence[Probe],
    *,
    edits: str | Edit | Sequence[str | Edit],
    passes: int,
    fastpath: bool,
    restore: bool,
    name: str,
    meta: Mapping[str, Any],
    watch_session: Callable[[HookSession], object] | None,
) -> list[Report]:
    """One attempt of `capture`."""
    step = replace(step, backward=any(p.needs_backward for p in probes))
    args, kwargs = arguments(inputs)
    changes = parse_edits(edits, model, step.backward)
    # A probe that looks at no values has no say where another looks at them: the model runs as it really does.
    fastpath = fastpath and all(p.fastpath for p in [p for p in probes if p.values] or probes)
    described = {**describe_run(model, inputs), **meta, "fastpath": fastpath} | _edits_of(changes)
    averaged = step.share.of if step.backward and step.share.averaged else 1
    restore = restore or any(map(offers_another, probes))
    started = time.perf_counter()

    def crashed(error: BaseException) -> ModelError:
        said = failure.explain(error, model)
        described["error"] = said.partition("\n")[0]
        return ModelError(said)

    if compiled_parts(model):
        described["compiled"] = "run without torch.compile"
    preserving = preserved(model, inputs, parameters=restore)
    with step.mode(), uncompiled(model), preserving, _strangers_preserved(model, restore):
        session = make_session(fastpath=fastpath, edits=changes, averaged=averaged)
        finish = partial(_reports, probes, name, described, started)
        with session:
            if watch_session:
                watch_session(session)
            try:
                _attach(probes, session)
                if any(p.needs_input_grad for p in probes):
                    step = replace(step, input_grad=True)
                    described["input_requires_grad"] = True
                session.note_made()
                with UserCode(crashed):
                    step.run(session, args, kwargs, passes, described)
                    _synchronize(model)
            except (UsageError, ModelError) as error:
                error.reports = tuple(finish(complete=False))
                raise
            except KeyboardInterrupt as error:
                error.reports = finish(complete=False)  # type: ignore[attr-defined]
                raise
            reports = finish(complete=True)
            check_applied(changes, reports)
            return reports


def _strangers_preserved(model: nn.Module, parameters: bool) -> AbstractContextManager[None]:
    """`preserved` for what the model computes with and has not registered, such as modules in a plain list."""
    strangers = Strangers(model)
    return preserved(strangers, (), parameters=parameters) if strangers else nullcontext()


class Watch:
    """The probes at work in a `watch` block; `reports()` gives what they have seen so far."""

    def __init__(self, session: HookSession, probes: Sequence[Probe], name: str, meta: Mapping[str, Any]) -> None:
        self.session = session
        self._reports = partial(_reports, probes, name, dict(meta), time.perf_counter())

    def reports(self) -> list[Report]:
        """A report per probe. On an accelerator this waits for what was measured."""
        return self._reports(complete=True)


@contextmanager
def watched(
    model: nn.Module,
    probes: str | Sequence[str | Probe],
    *,
    edits: str | Edit | Sequence[str | Edit] = (),
    select: Select | None = None,
    fastpath: bool = True,
    name: str | None = None,
) -> Iterator[Watch]:
    """Attach the probes around a step that the caller runs; see `hookcli.watch`."""
    chosen = [probe.in_callers_run() for probe in _probes(probes)]
    fastpath = fastpath and all(p.fastpath for p in chosen if p.values)
    changes = parse_edits(edits, model, backward=True)
    with HookSession(model, select=select, fastpath=fastpath, edits=changes, follow=True) as session:
        _attach(chosen, session)
        described = describe_run(model, ()) | {"fastpath": fastpath} | _edits_of(changes)
        yield Watch(session, chosen, name or type(model).__name__, described)


def parse_edits(edits: str | Edit | Sequence[str | Edit], model: nn.Module, backward: bool) -> list[Edit]:
    """The edits, made for this run. Raises UsageError for one that can't change anything in this model."""
    given = [edits] if isinstance(edits, (str, Edit)) else edits
    changes = []
    for number, edit in enumerate(given):
        if not isinstance(edit, (str, Edit)):
            raise UsageError(f"edits: give 'PATTERN:WHAT=OP' as text, not {type(edit).__name__}")
        made = parse_edit(edit, torch.initial_seed()) if isinstance(edit, str) else edit
        changes.append(replace(made, number=number, applied=0))
    check_edits(changes, model, backward)
    return changes


def _edits_of(changes: Sequence[Edit]) -> dict[str, Any]:
    return {"edits": [edit.text for edit in changes]} if changes else {}


def _probes(probes: str | Probe | Sequence[str | Probe]) -> list[Probe]:
    named = [probes] if isinstance(probes, (str, Probe)) else probes
    return [p if isinstance(p, Probe) else make_probe(registry.load("probes", p)) for p in named]


def make_probe(make: Callable[[], Any]) -> Probe:
    """The probe that a plugin's class, or a function that calls it, makes. Raises PluginError for what can't be one."""
    with registry.guarded(make):
        probe = make()
        if wrong := registry.misfitting_attribute("probes", probe):
            raise TypeError(wrong)
    return cast(Probe, probe)


def _attach(probes: Sequence[Probe], session: HookSession) -> None:
    for probe in probes:
        with _blaming(probe):
            probe.attach(session)


@contextmanager
def _blaming(probe: Probe) -> Iterator[None]:
    """An error of a probe is the probe's, not the model's."""
    told = UserCode(lambda error: PluginError(f"probe {probe.name!r} failed: {in_brief(error)}"))
    with told, registry.guarded(probe):
        yield


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called on these inputs: positional and keyword arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _synchronize(model: nn.Module) -> None:
    """Wait for the accelerator once, after the run, so that the time is the run's."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def _reports(
    probes: Sequence[Probe], name: str, meta: dict[str, Any], started: float, *, complete: bool
) -> list[Report]:
    meta = {**meta, "seconds": time.perf_counter() - started, "complete": complete}
    reports = []
    for probe in probes:
        with _blaming(probe):
            reports.append(probe.report(name, meta))
    return reports
