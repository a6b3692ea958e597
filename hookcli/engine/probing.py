"""Runs a model under probes, on its input or on batch after batch of real input, and collects the probes' reports.

An error of a probe names the probe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from hookcli import registry
from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import SavedValues
from hookcli.engine.run_info import finished
from hookcli.errors import HookcliError, ModelError, PluginError, UsageError, UserCode, carry, in_brief
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.edits.base import Edit, check_edits, parse_edit
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe, StatsProbe
from hookcli.registry.interfaces import misfitting_attribute
from hookcli.sources import losses
from hookcli.table import Report
from hookcli.table.meta import Meta
from hookcli.tensors import tree
from hookcli.tensors.torch_private import noted

Edits = str | Edit | Sequence[str | Edit]
MakeProbe = Callable[[], object]


def make_probe(make: MakeProbe) -> Probe:
    """The probe that a plugin's class or factory makes. Raises PluginError for one that fails or is not a probe."""
    with registry.guarded(make):
        probe = make()
        if wrong := misfitting_attribute("probes", probe):
            raise TypeError(wrong)
    return cast(Probe, probe)


def make_probes(probes: str | Probe | MakeProbe | Sequence[str | Probe | MakeProbe]) -> list[Probe]:
    """The probes, with names and factories replaced by the probes that they mean, in order."""
    listed = cast("Sequence[str | Probe | MakeProbe]", [probes] if is_one(probes) else probes)
    factories = [registry.load("probes", p) if isinstance(p, str) else p for p in listed]
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
    listed = [edits] if isinstance(edits, (str, Edit)) else edits
    changes = []
    for number, edit in enumerate(listed):
        if not isinstance(edit, (str, Edit)):
            raise UsageError(f"edits: give 'PATTERN:WHAT=OP' as text, not {type(edit).__name__}")
        made = parse_edit(edit, torch.initial_seed()) if isinstance(edit, str) else edit
        changes.append(replace(made, number=number, applied=0))
    check_edits(changes, model, backward)
    return changes


def of_hooks(fastpath: bool, edits: Sequence[Edit], ops: str | None) -> Meta:
    """The entries of `meta` on the hooks of a run."""
    meta: Meta = {"fastpath": fastpath}
    if edits:
        meta["edits"] = [edit.text for edit in edits]
    if ops:
        meta["ops"] = ops
    return meta


class Probing:
    """The probes of one run; `reports` gives what they have seen so far."""

    def __init__(self, probes: Sequence[Probe], name: str, info: Meta) -> None:
        self._probes = probes
        self._name = name
        self.info = info
        self._started = time.perf_counter()
        self._clock = ProgramClock()
        self.merges_batches = all(probe.merges_batches for probe in probes)

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
        carry(error, probing.reports(complete=False))
        raise


def run_batches(run: PreparedRun, session: HookSession, probing: Probing) -> None:
    """Run the model on its input; of several batches on all, after each of which the probes reduce what they saw.

    Gradients begin at zero for each batch. The loss that `info` has is the mean over batches. Only the first is run
    unless the probes' rows merge over batches.
    """
    if run.data is None or not run.data.several or not probing.merges_batches:
        _run(run, session, probing, run.inputs)
        _note_target(run)
        if run.data and probing.merges_batches:
            run.data.remark_if_short(1, run.feedback.remark)
        return
    info, total = run.info, 0.0
    info["batches"] = 0
    for number, batch in enumerate(run.data.each()):
        session.begin_batch(number, run.data.total)
        with ExitStack() as stack:  # a batch may be a view of a data set, and the model write into it
            stack.callback(SavedValues(x for _, x in tree.leaves(batch.inputs)).put_back)
            one = replace(run, step=replace(run.step, target=batch.target))
            _run(one, session, probing, batch.inputs, place=f"batch {number + 1}: ")
        _note_target(one)
        probing.batch_ended()
        for parameter in run.model.parameters():
            parameter.grad = None
        info["batches"] += 1
        if isinstance(value := info.get("loss_value"), float):
            total += value
            info["loss_value"] = total / info["batches"]
    run.data.remark_if_short(info["batches"], run.feedback.remark)


def _run(run: PreparedRun, session: HookSession, probing: Probing, inputs: Any, place: str = "") -> None:
    args, kwargs = arguments(inputs)
    probing.begin(args, kwargs, run.step.target)
    with UserCode(partial(failure.crashed, run.model, run.info, place=place)):
        run.step.run(session, args, kwargs, run.info)
        device = next((p.device for p in run.model.parameters()), torch.device("cpu"))
        if device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize(device)  # once, after the run, so that the time is the run's


def _note_target(run: PreparedRun) -> None:
    """Note in `info`, after the first batch, who got its target; remark on a target that the loss does not take."""
    if run.step.target is None or "target" in run.info:
        return
    shapes = ", ".join(tree.shape_text(x) for _, x in tree.leaves(run.step.target)) or type(run.step.target).__name__
    loss = run.info.get("loss")
    function = losses.NAMED.get(loss or "") if isinstance(run.step.loss, str) else run.step.loss
    used = run.step.backward and loss is not None and function is not None and losses.takes_target(function)
    run.info["target"] = f"{shapes}, for the loss" if used else f"{shapes}, not used"
    if run.step.backward and loss is not None and not used:
        other = "--loss cross-entropy does, or file.py:fn from output and target to scalar"
        run.feedback.remark(f"the loss ({loss}) does not use the batches' targets; {other}")
