"""Makes probes, attaches them to a session and collects their reports. A probe's errors name the probe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from hookcli import registry
from hookcli.engine.run_info import finished
from hookcli.errors import HookcliError, ModelError, PluginError, UsageError, UserCode, in_brief
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.edits.base import Edit, check_edits, parse_edit
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe, StatsProbe
from hookcli.registry.interfaces import misfitting_attribute
from hookcli.table import Report
from hookcli.table.meta import Meta
from hookcli.tensors.torch_private import noted

Edits = str | Edit | Sequence[str | Edit]
MakeProbe = Callable[[], object]


def make_probe(make: MakeProbe) -> Probe:
    """The probe that a plugin's class or factory makes. Raises PluginError for one that fails or is no probe."""
    with registry.guarded(make):
        probe = make()
        if wrong := misfitting_attribute("probes", probe):
            raise TypeError(wrong)
    return cast(Probe, probe)


def make_probes(probes: str | Probe | MakeProbe | Sequence[str | Probe | MakeProbe]) -> list[Probe]:
    """The probes, with names and factories replaced by the probes that they mean, in order."""
    given = cast("Sequence[str | Probe | MakeProbe]", [probes] if is_one(probes) else probes)
    factories = [registry.load("probes", p) if isinstance(p, str) else p for p in given]
    return [p if isinstance(p, Probe) else make_probe(p) for p in factories]


def is_one(probes: object) -> bool:
    """True for a single probe, by its name, class or factory, or made already."""
    return isinstance(probes, (str, Probe)) or callable(probes)


def are_probes(value: object) -> bool:
    """True for one probe, and for several; False for what only a model can take."""
    if isinstance(value, (list, tuple)):
        return all(map(is_one, value))
    return isinstance(value, Iterator) or (is_one(value) and not isinstance(value, nn.Module))


def parse_edits(edits: Edits, model: nn.Module, backward: bool) -> list[Edit]:
    """New edits for one run. Raises UsageError for one that can't change anything in this model."""
    given = [edits] if isinstance(edits, (str, Edit)) else edits
    changes = []
    for number, edit in enumerate(given):
        if not isinstance(edit, (str, Edit)):
            raise UsageError(f"edits: give 'PATTERN:WHAT=OP' as text, not {type(edit).__name__}")
        made = parse_edit(edit, torch.initial_seed()) if isinstance(edit, str) else edit
        changes.append(replace(made, number=number, applied=0))
    check_edits(changes, model, backward)
    return changes


class Probing:
    """The probes of one run; `reports` gives what they have seen so far."""

    def __init__(self, probes: Sequence[Probe], name: str, info: Meta) -> None:
        self._probes = probes
        self._name = name
        self.info = info
        self._started = time.perf_counter()
        self._clock = ProgramClock()

    def attach(self, session: HookSession) -> None:
        self._clock = session.clock
        for probe in self._probes:
            session.operators_too = probe.operators
            with _blaming(probe):
                probe.attach(session)

    def begin(self, args: tuple[object, ...], kwargs: Mapping[str, object], target: object) -> None:
        """Pass the batch that the model is about to run on to the probes that also write their tensors to a sink."""
        for probe in self._probes:
            if isinstance(probe, StatsProbe):
                with _blaming(probe):
                    probe.begin(args, kwargs, target)

    def batch_ended(self) -> None:
        for probe in self._probes:
            with _blaming(probe):
                probe.batch_ended()

    def reports(self, *, complete: bool) -> list[Report]:
        """A report per probe. On an accelerator this waits for the statistics."""
        seconds = time.perf_counter() - self._started
        info: Meta = {**self.info, "seconds": seconds, "hookcli_seconds": self._clock.own, "complete": complete}
        reports = []
        for probe in self._probes:
            with _blaming(probe):
                report = probe.report(self._name, finished(info))
            reports.append(replace(report, meta=noted(report.meta)))  # a report may look further names up
        return reports


@contextmanager
def _blaming(probe: Probe) -> Iterator[None]:
    """Turn errors in the block into PluginErrors that name the probe."""
    probe_code = UserCode(lambda error: PluginError(f"probe {probe.name!r} failed: {in_brief(error)}"))
    with probe_code, registry.guarded(probe):
        yield


@contextmanager
def partial_reports(probing: Probing) -> Iterator[None]:
    """Give an error that ends the block, or an interrupt, the reports of what was seen until then."""
    try:
        yield
    except (UsageError, ModelError, KeyboardInterrupt) as error:
        if isinstance(error, HookcliError) and "error" not in probing.info:
            probing.info["error"] = str(error).partition("\n")[0]
        error.reports = tuple(probing.reports(complete=False))  # type: ignore[union-attr]
        raise
