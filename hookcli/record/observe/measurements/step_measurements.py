"""Measures one observed step with hooks, and makes reports of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn
from torch.optim.optimizer import Optimizer

from hookcli import registry
from hookcli.engine.run_info import describe_run, finished
from hookcli.hooks.parts import compiled_parts
from hookcli.hooks.session import HookSession
from hookcli.hooks.session_core import CallbackGuard
from hookcli.probes.base import Probe, StatsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.record.observe.measurements.evidence import Evidence
from hookcli.record.observe.measurements.keep_bad import KeepBad
from hookcli.record.observe.measurements.match_filter import MatchFilter
from hookcli.record.observe.measurements.step_times import StepTimes, TimeProbe
from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.optimizers.parameters import GradScaling, ParameterRows
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.observe.wrappers import PlainNames, replicas_of, tensor_parallel_ranks
from hookcli.table import Report, Row, Skipped, TensorStats, columns_named
from hookcli.table.columns.recorded import PARAMETER_GROUPS, UPDATES
from hookcli.table.formatting import number
from hookcli.table.meta import Meta
from hookcli.tensors.chunks import PendingFigures
from hookcli.tensors.stats import Reducer, resolve

Seen = list[tuple[dict[str, object], PendingFigures]]


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
        compiled = self._compiled = compiled_parts(module) if not model.hidden else {}

        def watched(fqn: str, part: object) -> bool:
            return fqn not in compiled and matches(fqn, None if isinstance(part, nn.Module) else part)

        matches = self._match_filter = MatchFilter(plan.match, module, self.name, model, operators=bool(plan.ops))
        self.parameters = ParameterRows(module, self.name, matches, hist=plan.hist)
        self._meta: Meta = {}
        self._ranks: Meta = {}
        self._searched: dict[str, int] = {}
        self.keep_bad = KeepBad(Path(plan.keep_bad)) if plan.keep_bad is not None else None
        self.session = HookSession(
            nn.Identity() if model.hidden else module, select=watched, guard=guard, callers_run=True, ops=plan.ops
        )
        self.session.unhooked |= self._compiled
        self._probes: list[Probe] = []
        for name in plan.probes:
            if name == "grads" and training:
                self._probes.append(GradsProbe(of="outputs", hist=plan.hist))
            elif name not in ("grads", "updates", "optimizer", "time"):  # which the session's hooks don't measure
                hist = {"hist": True} if plan.hist and name in ("activations", "inputs") else {}  # not in plugins
                self._probes.append(registry.load("probes", name)(**hist))
        measuring = (p.reduce for p in self._probes if isinstance(p, StatsProbe) and p.name == "activations")
        self.evidence = Evidence(next(measuring, Reducer()))
        self._times: TimeProbe | None = None
        if plan.timed or "time" in plan.probes:
            self._times = TimeProbe(times, module, self.name, training, by_nodes=plan.timed)
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

    def describe(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Note the device and dtype of the first forward."""
        self._meta = self._meta or finished(describe_run(self._module, (args, kwargs)))

    def backward_over(self, scaler: object) -> None:
        """Note that a backward pass through the model is over; `scaler`, if any, scaled its loss."""
        for probe in self._probes:
            if isinstance(probe, GradsProbe):
                self.scaling.backward_over(len(probe.pending()), scaler)
                if "optimizer" in self._plan.probes:
                    self.parameters.take_unclipped(self.scaling.last)
        if self._times:
            self._times.backward_over()

    def take_groups(self, optimizer: Optimizer) -> None:
        if "optimizer" in self._plan.probes:
            self.parameters.take_groups(optimizer)

    def take_gradients(self, optimizer: Optimizer | None = None) -> None:
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
        probes = [p for p in self._probes if p.name == "activations" and isinstance(p, StatsProbe)]
        stats = resolve([pending for p in probes for values, pending in p.pending() if values["fqn"] == ""])
        if stats and all(s.finite == s.numel for s in stats):
            largest = max((max(abs(s.min), abs(s.max)) for s in stats if s.numel), default=0.0)
            yield f"the model's output was finite, up to {number(largest)}: it begins in the loss function"

    # When the step is over.

    def reports(self, meta: Meta, losses: Mapping[int, float]) -> list[Report]:
        """A report per probe. `losses`: those of optimizers that step in turns. Waits for an accelerator."""
        self._match_filter.step_over()
        name, meta = self._model.name, {**self._meta, **self._ranks, **meta}
        by_probe = {probe.name: self._report(probe, meta) for probe in self._probes}
        reports = [report for probe, report in by_probe.items() if probe != "inventory"]
        if "inventory" in by_probe:  # programs that are not judged need not import the checks
            from hookcli.record.observe.measurements.step_checks import check_step

            reports.append(check_step(name, by_probe, meta))
        if "updates" in self._plan.probes and (rows := list(self.parameters.updates.values())):
            skipped = self.parameters.without_optimizer(self._model.optimizers())
            reports.append(Report("updates", name, UPDATES, rows, meta, {}, skipped))
        if "optimizer" in self._plan.probes and (rows := self.parameters.group_rows(losses)):
            columns = (*PARAMETER_GROUPS, *(columns_named("loss") if losses else ()))
            reports.append(Report("optimizer", name, columns, rows, meta, grouping="list"))
        # The last one, so that hookcli's own time has all of this in it.
        return [*reports, self._times.report(name, meta)] if self._times else reports

    def _report(self, probe: Probe, meta: Meta) -> Report:
        report = probe.report(self._model.name, meta)
        if not isinstance(probe, StatsProbe):
            return report
        if isinstance(probe, GradsProbe):
            report = replace(report, rows=self.scaling.unscale(report.rows))
        report = merge_calls(report, self.name)
        seen = {row.fqn for row in report.rows}  # also the wrapper of a compiled module
        hidden = [Skipped(self.name(fqn), why) for fqn, why in self._compiled.items() if self.name(fqn) not in seen]
        if not isinstance(probe, GradsProbe):
            return replace(report, skipped=[*report.skipped, *hidden])
        missing = self.parameters.without_gradient(meta["complete"])
        rows = [*report.rows, *self.parameters.gradient_rows()]
        return replace(report, rows=rows, skipped=[*report.skipped, *missing, *hidden])


(_CALLS,) = columns_named("calls")


def merge_calls(report: Report, name: Callable[[str], str]) -> Report:
    """Merge the rows of all calls exactly, under `name`'s fqns; of a wrapper and its module, the module's stay."""
    calls: dict[tuple[object, ...], list[Row]] = {}
    for row in report.rows:
        calls.setdefault((row.fqn, row.get("kind"), row.get("path")), []).append(row)
    named: dict[tuple[object, ...], list[Row]] = {}
    for (fqn, *rest), rows in calls.items():
        key = (name(str(fqn)), *rest)
        if key not in named or len(named[key][0].fqn) < len(str(fqn)):
            named[key] = rows
    merged = []
    for rows in named.values():  # the first call's values, with the statistics of all calls
        values = {key: value for key, value in rows[0].values.items() if key not in ("call", "pass")}
        stats = TensorStats.merge(row.stats for row in rows if row.stats) if rows[0].stats else None
        merged.append(Row(values | {"fqn": name(rows[0].fqn), "calls": len(rows)}, stats))
    seen = {row.fqn for row in report.rows}
    names = {name(fqn) for fqn in seen}
    skipped = [replace(s, fqn=name(s.fqn)) for s in report.skipped if s.fqn in seen or name(s.fqn) not in names]
    columns = [_CALLS if column.name == "call" else column for column in report.columns if column.name != "pass"]
    return replace(report, columns=columns, rows=merged, totals={}, skipped=list(dict.fromkeys(skipped)))
