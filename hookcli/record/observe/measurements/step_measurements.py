"""Measures one observed step with hooks, and makes reports of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli import registry
from hookcli.engine.run_info import describe_run
from hookcli.hooks.session import HookSession
from hookcli.hooks.session_core import CallbackGuard
from hookcli.hooks.unhooked import compiled_parts
from hookcli.probes.base import Probe, StatsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.record.observe.measurements.evidence import Evidence
from hookcli.record.observe.measurements.keep_bad import KeepBad
from hookcli.record.observe.measurements.rows import merge_calls
from hookcli.record.observe.measurements.selection import Selection, is_watched
from hookcli.record.observe.measurements.step_times import StepTimes, TimeProbe
from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.optimizers.grad_scaling import GradScaling
from hookcli.record.observe.optimizers.parameters import ParameterRows
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.observe.wrappers import PlainNames, replicas_of, tensor_parallel_ranks
from hookcli.table import Report, Skipped, columns_named
from hookcli.table.columns.layouts import GROUPS, UPDATES
from hookcli.table.formatting import number
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import Reducer, resolve

Seen = list[tuple[dict[str, Any], PendingFigures]]


_WITHOUT_HOOKS = ("updates", "optimizer", "time")  # probes that are measured by other means than the session's hooks


class StepMeasurements:
    """Hooks on the modules of a model for one step. `training`: whether gradients are measured, too."""

    def __init__(
        self,
        model: ObservedModel,
        module: nn.Module,
        plan: RecordingPlan,
        guard: CallbackGuard,
        times: StepTimes,
        training: bool,
    ) -> None:
        self.name = PlainNames(module)
        self.scaling = GradScaling()
        self._model = model
        self._module = module
        self._plan = plan
        self._compiled = compiled_parts(module) if not model.hidden else {}
        selection = self._selection = Selection(plan.match, module, self.name, model, operators=bool(plan.ops))
        self.parameters = ParameterRows(module, self.name, selection, hist=plan.hist)
        self._meta: dict[str, Any] = {}
        self._ranks: dict[str, Any] = {}
        self._searched: dict[str, int] = {}
        self.keep_bad = KeepBad(Path(plan.keep_bad)) if plan.keep_bad is not None else None
        self.session = HookSession(
            nn.Identity() if model.hidden else module,
            select=partial(is_watched, selection, self._compiled),
            guard=guard,
            callers_run=True,
            ops=plan.ops,
        )
        self.session.unhooked |= self._compiled
        self._probes: list[Probe] = [
            GradsProbe(of="outputs", hist=plan.hist) if name == "grads" else _probe(name, plan.hist)
            for name in plan.probes
            if name not in _WITHOUT_HOOKS and (training or name != "grads")
        ]
        measuring = (p.reduce for p in self._probes if isinstance(p, StatsProbe) and p.name == "activations")
        self.evidence = Evidence(next(measuring, Reducer()))
        timed = plan.timed or "time" in plan.probes
        self._times = TimeProbe(times, module, self.name, training, by_nodes=plan.timed) if timed else None
        if plan.check and training and not model.hidden:  # before the others, whose hooks it would find
            self._probes.insert(0, InventoryProbe(backward=True))

    # While the step is open.

    def start(self, called: nn.Module) -> None:
        """Attach the probes' hooks, as the first forward begins: that of the model, or of a wrapper around it."""
        if (replicas := replicas_of(called)) > 1:
            self._ranks = {"replicas": replicas}
        if spread := tensor_parallel_ranks(self._module):
            self._ranks |= {"tensor_parallel": spread}
        self.session.__enter__()
        for probe in [*self._probes, *([self._times] if self._times else [])]:
            self.session.operators_too = probe.operators
            probe.attach(self.session)
        self.session.operators_too = True  # what an operator made is not blamed on the module that receives it
        if self._plan.first_bad:  # after the probes, whose figures it takes
            self.evidence.attach(self.session, gradients=any(isinstance(p, GradsProbe) for p in self._probes))
        self.session.operators_too = False
        if self.keep_bad:
            self.keep_bad.attach(self.session)

    def describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the device and dtype of the first forward."""
        self._meta = self._meta or describe_run(self._module, (args, kwargs)).to_meta()

    def backward_over(self, scaler: Any) -> None:
        """Note that a backward pass through the model is over; `scaler`, if any, scaled its loss."""
        for probe in self._probes:
            if isinstance(probe, GradsProbe):
                self.scaling.backward_over(len(probe.pending()), scaler)
                if "optimizer" in self._plan.probes:
                    self.parameters.take_unclipped(self.scaling.last)
        if self._times:
            self._times.backward_over()

    def take_groups(self, optimizer: Optimizer) -> None:
        """Note the settings of an optimizer whose step begins."""
        if "optimizer" in self._plan.probes:
            self.parameters.take_groups(optimizer)

    def take_gradients(self, optimizer: Optimizer | None = None) -> None:
        """Measure the gradients of parameters as they are now: of all, or of those in an optimizer."""
        if "grads" in self._plan.probes:
            self.parameters.take_gradients(optimizer)

    # For the search.

    def unsearched(self) -> Iterator[tuple[str, Probe, Seen, int]]:
        """All measurements of each sort, and how many of them are new since the last call."""
        for probe in self._probes:
            what = "gradient" if isinstance(probe, GradsProbe) else "output"
            overflows = what == "gradient" and self.scaling.used  # which the GradScaler handles
            if isinstance(probe, StatsProbe) and not overflows:
                yield from self._new(what, probe, probe.pending())
                if what == "gradient":
                    yield from self._new("parameter gradient", probe, self.parameters.gradients())

    def _new(self, what: str, probe: Probe, seen: Seen) -> Iterator[tuple[str, Probe, Seen, int]]:
        key = f"{probe.name} {what}"
        new = len(seen) - self._searched.get(key, 0)
        self._searched[key] = len(seen)
        if new > 0:
            yield what, probe, seen, new

    def finite_output(self) -> Iterator[str]:
        """Say that the model's outputs were finite, and how large; nothing if they were not measured."""
        own = [
            seen for p in self._probes if p.name == "activations" and isinstance(p, StatsProbe) for seen in p.pending()
        ]
        stats = resolve([pending for values, pending in own if values["fqn"] == ""])
        if stats and all(s.finite == s.numel for s in stats):
            largest = max((max(abs(s.min), abs(s.max)) for s in stats if s.numel), default=0.0)
            yield f"the model's output was finite, up to {number(largest)}: it begins in the loss function"

    # When the step is over.

    def reports(self, meta: dict[str, Any], losses: Mapping[int, float]) -> list[Report]:
        """A report per probe; `meta` adds entries about the step. `losses`: those of optimizers that step in turns.

        Waits for an accelerator.
        """
        self._selection.step_over()
        name, meta = self._model.name, self._meta | self._ranks | meta
        by_probe = {probe.name: self._report(probe, meta) for probe in self._probes}
        verdict = _verdict(name, by_probe, meta) if "inventory" in by_probe else []
        reports = [report for probe, report in by_probe.items() if probe != "inventory"] + verdict
        if "updates" in self._plan.probes and (rows := self.parameters.update_rows()):
            skipped = self.parameters.without_optimizer(self._model.optimizers())
            reports.append(Report("updates", name, UPDATES, rows, meta, {}, skipped))
        if "optimizer" in self._plan.probes and (rows := self.parameters.group_rows(losses)):
            columns = (*GROUPS, *(columns_named("loss") if losses else ()))
            reports.append(Report("optimizer", name, columns, rows, meta, grouping="list"))
        # The last one, so that hookcli's own time has all of this in it.
        return [*reports, self._times.report(name, meta)] if self._times else reports

    def _report(self, probe: Probe, meta: dict[str, Any]) -> Report:
        found = probe.report(self._model.name, meta)
        if not isinstance(probe, StatsProbe):
            return found
        if isinstance(probe, GradsProbe):
            found = replace(found, rows=self.scaling.unscale(found.rows))
        found = merge_calls(found, self.name)
        hidden = list(self._hidden({row.fqn for row in found.rows}))
        if not isinstance(probe, GradsProbe):
            return replace(found, skipped=[*found.skipped, *hidden])
        missing = self.parameters.without_gradient(meta["complete"])
        rows = [*found.rows, *self.parameters.gradient_rows()]
        return replace(found, rows=rows, skipped=[*found.skipped, *missing, *hidden])

    def _hidden(self, seen: Iterable[str]) -> Iterator[Skipped]:
        """The parts of compiled modules; not the wrapper of a compiled module, which has a row."""
        for fqn, reason in self._compiled.items():
            if (name := self.name(fqn)) not in seen:
                yield Skipped(name, reason)


def _probe(name: str, hist: bool) -> Probe:
    """The probe of this name; those of other distributions know no histograms."""
    probe: Probe = registry.load("probes", name)(**({"hist": True} if hist and name in _WITH_HISTOGRAMS else {}))
    return probe


_WITH_HISTOGRAMS = ("activations", "inputs")


def _verdict(name: str, reports: Mapping[str, Report], meta: Mapping[str, Any]) -> list[Report]:
    """The judgement of a step; programs that are not judged need not import the checks."""
    from hookcli.record.observe.measurements.step_checks import check_step

    return [check_step(name, reports, meta)]
