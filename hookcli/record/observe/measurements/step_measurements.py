"""Measures one observed step with hooks, and makes reports of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.checks.unused import without_gradient
from hookcli.engine.run_info import describe_run, finished
from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.parts import compiled_parts
from hookcli.hooks.session import HookSession
from hookcli.hooks.session_core import CallbackGuard
from hookcli.hooks.torch_private.dynamo import frames_compiled, is_compiled_in_place, runs_compiled
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.base import Probe, StatsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.record.file.record_lines import NonFinite, PartLine, RecordedStep
from hookcli.record.observe.measurements.loss_reach import LossReach
from hookcli.record.observe.measurements.match_filter import MatchFilter
from hookcli.record.observe.measurements.step_reports import check_step, measured_in_step, merge_calls, step_probes
from hookcli.record.observe.measurements.step_times import StepTimes, TimeProbe
from hookcli.record.observe.models.model import ObservedModel
from hookcli.record.observe.naming import PlainNames, replica_group, replicas_of, tensor_parallel_ranks
from hookcli.record.observe.optimizers.optimizer_steps import Snapshot
from hookcli.record.observe.optimizers.parameters import GradScaling, ParameterRows
from hookcli.record.observe.parts import BegunStep, Measured, Parts, StepPart, StepView
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.table import Report, Row, Skipped, columns_named
from hookcli.table.columns.recorded import PARAMETER_GROUPS, UPDATES
from hookcli.table.marks import of_unknown_origin
from hookcli.table.meta import Meta
from hookcli.tensors.stats import Reducer
from hookcli.tensors.tree import Args


@dataclass(frozen=True, slots=True)
class SharedBySteps:
    """The plan, clock and parts of all steps of a recording, and the `guard` that wraps their hooks."""

    plan: RecordingPlan
    guard: CallbackGuard
    clock: ProgramClock
    parts: Parts


class StepMeasurements:
    """Hooks on the modules of a model for one step. `training`: whether gradients are measured, too."""

    def __init__(
        self,
        model: ObservedModel,
        module: nn.Module,
        shared: SharedBySteps,
        times: StepTimes,
        *,
        training: bool,
        inside: bool = False,
    ) -> None:
        self._plan = plan = shared.plan
        self._parts = shared.parts
        self.passes = 0
        """The number of backward passes that are over."""
        self.name = PlainNames(module)
        self.scaling = GradScaling()
        self._model = model
        self._module = module
        self._training, self._backward = training, False
        observed = nn.Identity() if model.hidden else module
        compiled = compiled_parts(observed)
        self._compiled = {} if inside else compiled

        def watched(fqn: str, part: object) -> bool:
            return matches(fqn, None if isinstance(part, nn.Module) else part)

        matches = self._match_filter = MatchFilter(plan.match, module, self.name, model.counts.note, bool(plan.ops))
        self.parameters = ParameterRows(module, self.name, matches, hist=plan.hist)
        self._meta: Meta = {}
        self._ranks, self._group = Meta(), list[int]()
        self.watched_operators = model.operators_to_watch(plan, inside=self._parts.hear("inside"))
        session = partial(HookSession, observed, guard=shared.guard, callers_run=True, ops=self.watched_operators)
        outside = session(select=lambda fqn, part: fqn not in compiled and watched(fqn, part))
        outside.unhooked |= compiled
        # Probes that need of a module only what it returns see inside compiled parts; the others use the last session.
        self.sessions = [session(select=watched, inside_compiled=True), outside] if inside else [outside]
        self.session = self.sessions[0]
        probes = step_probes(plan, training=training)
        if model.hidden:  # no hook sees its forward
            probes = [probe for probe in probes if isinstance(probe, GradsProbe)]
        self._probes = [probe for probe in probes if self._parts.works(model.name, probe.name)]
        self.parameters.watchers = self._probes
        self._step_parts = self._begun_parts()
        followed = training and not (compiled or frames_compiled()) and model.course.follows
        guard = partial(self._parts.run, model.name, LossReach.part, otherwise=None)
        self._reach = LossReach(module, self.name, model.course, shared.clock, guard) if followed else None
        self._times: TimeProbe | None = None
        if plan.timed or "time" in plan.probes:
            self._times = TimeProbe(times, module, self.name, training, by_nodes=plan.timed)

    # While the step is open.

    def start(self, called: nn.Module) -> None:
        """Attach the probes' hooks, as the first forward of the model, or of a wrapper around it, begins."""
        if (replicas := replicas_of(called)) > 1:
            self._ranks, self._group = {"replicas": replicas}, replica_group(called)  # another word
        if spread := tensor_parallel_ranks(self._module):
            self._ranks |= {"tensor_parallel": spread}
        for session in self.sessions:
            session.__enter__()
        for probe in [*self._probes, *filter(None, [self._times])]:
            session = self.sessions[0 if probe.inside_compiled else -1]
            session.operators_too = probe.operators and not self.looks_closer
            self._attach(probe.name, session, probe.attach)
            if self.looks_closer and isinstance(probe, ActivationsProbe):
                session.operators_too = True
                self._guarded(probe.name, probe.watch_operators)
        if self._reach:
            self._reach.attach(self.sessions[-1])
        for part, of_step in self._step_parts.items():  # after the probes, whose figures they may take
            session = self.sessions[0 if of_step.inside_compiled else -1]
            session.operators_too = bool(of_step.operators and self._plan.ops)
            self._attach(part, session, partial(self._parts.ask, self._model.name, part, of_step, "attach"))

    def _begun_parts(self) -> dict[str, StepPart]:
        """The parts of capabilities in this step."""
        gradients = any(isinstance(probe, GradsProbe) for probe in self._probes)
        measuring = (p.reduce for p in self._probes if isinstance(p, StatsProbe) and p.name == "activations")
        of_model = self._model.name, self._module, self.name, self._training
        operators, reduce = bool(self._plan.ops), next(measuring, Reducer())
        stale = partial(getattr, self._model, "stale_optimizer")
        step = BegunStep(*of_model, self._plan.probes, gradients, operators, reduce, stale, self._compiled)
        begun = {
            part: self._parts.ask(self._model.name, part, recorder, "begin_step", step)
            for part, recorder in self._parts.recorders.items()
        }
        return {part: of_step for part, of_step in begun.items() if of_step is not None}

    def _answers(self, event: str, *told: object, **named: object) -> list[Any]:
        """The answers of the capabilities' parts to an event of the step, without None."""
        asked = (
            self._parts.ask(self._model.name, part, of_step, event, *told, **named)
            for part, of_step in self._step_parts.items()
        )
        return [answer for answer in asked if answer is not None]

    def _attach(self, part: str, session: HookSession, attach: Callable[[HookSession], object]) -> None:
        """Attach the hooks of a part, which is left out from then on if it fails."""
        session.wrap_callback = partial(self._parts.guarded, self._model.name, part)
        self._guarded(part, partial(attach, session))

    @property
    def looks_closer(self) -> bool:
        """True if operators are watched for infinities alone."""
        return bool(self.watched_operators and not self._plan.ops)

    @property
    def sees_operators(self) -> bool:
        """True if operators are watched, and no part of the model is compiled, whose operators none can see."""
        return bool(self.watched_operators) and not self._compiled

    def with_origins(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows of outputs, with remarks on infinities that are meant, or may be as far as this step can see."""
        rows = self._model.with_masks(rows, looked=self.sees_operators)
        if self.sees_operators:
            return rows
        probes = (probe for probe in self._probes if isinstance(probe, ActivationsProbe))
        return of_unknown_origin(rows, {self.name(fqn) for each in probes for fqn in each.modules_that_computed()})

    def _guarded(self, part: str, do: Callable[[], object]) -> None:
        """Do the work of a part, which is left out from then on if it fails."""
        self._parts.run(self._model.name, part, do, None)

    def begin_forward(self, called: nn.Module, args: Args) -> None:
        """Put hooks on the modules again for a forward, which has begun, of this module."""
        for session in self.sessions:
            session.modules.thread = threading.get_ident()
            session.modules.attach()
            if runs_compiled(called):
                session.detach_operators()  # what runs is compiled as a whole, and would be again under another mode
            else:
                session.attach_operators()
            if not is_compiled_in_place(called):  # whose own hooks are in the program
                session.modules.enter(called, args)

    def begin_backward(self, roots: Sequence[Tensor], losses: Sequence[Tensor], *, counts_alone: bool) -> None:
        """Put hooks on the modules again: checkpointed modules run again inside a backward pass."""
        self.stop_loss()
        if self._reach:
            self._reach.backward_begins(roots)
        for session in self.sessions if not counts_alone else ():
            session.backward_begins(roots)
            session.modules.attach()
        optimizers = self._model.trained_by()
        self._answers("backward_begins", losses, optimizers)

    def watch_loss(self) -> None:
        """Watch the loss function, which runs next in this thread, if operators are watched or parameters followed."""
        if self._plan.ops or self._reach:
            self.sessions[-1].watch_loss()

    def other_begins(self) -> None:
        """Note that another model runs now: its operators are not the loss function's, but may use what is followed."""
        if self._plan.ops:
            self.stop_loss()

    def stop_loss(self) -> None:
        for session in self.sessions:
            session.stop_loss()

    def stop_operators(self) -> None:
        """Watch operators no longer in this thread."""
        for session in self.sessions:
            session.detach_operators()

    def detach(self) -> None:
        """Take the hooks off the modules; those on tensors stay."""
        for session in self.sessions:
            session.detach_operators()
            session.modules.detach()

    def remove(self) -> None:
        for session in self.sessions:
            session.__exit__(None, None, None)

    def release(self) -> None:
        for session in self.sessions:
            session.release()

    def describe(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Note the device and dtype of the first forward."""
        self._meta = self._meta or finished(describe_run(self._module, (args, kwargs)))

    def backward_over(self, scaler: object, *, counts_alone: bool) -> None:
        """Note that a backward pass through the model is over; `scaler`, if any, scaled its loss.

        Of a pass that `counts_alone` nothing is measured: how large it left the gradients is unknown.
        """
        self._backward = True
        self.passes += 1
        self._answers("backward_over")
        self.parameters.note_reached()
        if counts_alone:
            self.parameters.forget_unclipped()
        for probe in self._probes:
            if isinstance(probe, GradsProbe):
                self.scaling.backward_over(len(probe.pending()), scaler)
                if not counts_alone and "optimizer" in self._plan.probes:
                    self._guarded("optimizer", partial(self.parameters.take_unclipped, self.scaling.last))
        if self._times:
            self._times.backward_over()

    def take_groups(self, optimizer: Optimizer) -> None:
        if "optimizer" in self._plan.probes or self._plan.check:
            self._guarded("optimizer", partial(self.parameters.take_groups, optimizer))

    def take_gradients(self, optimizer: Optimizer | None = None) -> None:
        if "grads" in self._plan.probes:
            self._guarded("grads", partial(self.parameters.take_gradients, optimizer))
        if optimizer is not None:
            self._answers("optimizer_takes", optimizer)

    def take_updates(self, snapshot: Snapshot) -> None:
        self._guarded("updates", partial(self.parameters.take_updates, snapshot))

    # For the parts of capabilities.

    def looked_at(self, step: StepView, *, over: bool) -> list[NonFinite]:
        """Let the parts look at the step. Returns the run's first value that is not finite, if one finds it."""
        return self._answers("look", step, over=over)

    def so_far(self) -> list[Measured]:
        """All measurements of each sort, but for gradients that a GradScaler has scaled, which handles overflows."""
        sorts: list[Measured] = []
        for probe in self._probes:
            if isinstance(probe, GradsProbe):
                if not self.scaling.used:
                    sorts.append(Measured("gradient", probe, probe.pending()))
                    sorts.append(Measured("parameter gradient", probe, self.parameters.gradients()))
            elif isinstance(probe, StatsProbe):
                sorts.append(Measured("output", probe, probe.pending()))
        return sorts

    def told(self, fqn: str, value: NonFinite) -> NonFinite:
        """The first value that is not finite, with what the parts of capabilities say of it."""
        return replace(value, kept="; ".join(filter(None, self._answers("found", fqn, value))))

    # When the step is over.

    def part_lines(self, recorded: RecordedStep) -> list[PartLine]:
        """The lines that the parts of capabilities write on this step. Waits for an accelerator."""
        return [line for lines in self._answers("lines", recorded, scaled=self.scaling.used) for line in lines]

    def reports(self, meta: Meta, loss: float | None, losses: Mapping[int, float]) -> list[Report]:
        """A report per probe. `loss`: the step's; `losses`: the losses of optimizers that step in turns. Waits for an
        accelerator.
        """
        self._match_filter.step_over()
        if self._reach:
            self._reach.ended()
        name, meta = self._model.name, {**self._meta, **self._ranks, **meta}
        made = {p.name: self._parts.run(name, p.name, partial(self._report, p, meta), None) for p in self._probes}
        by_probe = {probe: report for probe, report in made.items() if report}
        parts: dict[str, Callable[[], Report | None]] = {}
        if "inventory" in by_probe:
            parts["check"] = partial(self._judged, by_probe, meta, loss)
        if "updates" in self._plan.probes:
            parts["updates"] = partial(self._update_report, meta)
        if "optimizer" in self._plan.probes:
            parts["optimizer"] = partial(self._group_report, meta, losses)
        further = [self._parts.run(name, part, report, None) for part, report in parts.items()]
        further += self._answers("report", meta, self._group)
        if self._times:  # the last one, so that hookcli's own time has all of this in it
            further.append(self._parts.run(name, "time", partial(self._times.report, name, meta), None))
        return [*(report for probe, report in by_probe.items() if probe != "inventory"), *filter(None, further)]

    def _update_report(self, meta: Meta) -> Report | None:
        rows = list(self.parameters.updates.values())
        skipped = self.parameters.without_optimizer(self._model.optimizers()) if rows else []
        return Report("updates", self._model.name, UPDATES, rows, meta, {}, skipped) if rows else None

    def _group_report(self, meta: Meta, losses: Mapping[int, float]) -> Report | None:
        rows = self.parameters.group_rows(losses)
        columns = (*PARAMETER_GROUPS, *(columns_named("loss") if losses else ()))
        return Report("optimizer", self._model.name, columns, rows, meta, grouping="list") if rows else None

    def digest(self) -> str:
        """The digest that a part of a capability has made of the step, if one has."""
        return next((of_step.digest for of_step in self._step_parts.values() if of_step.digest), "")

    def notes(self) -> list[str]:
        """Notes on gradients that were scaled, and the notes of capabilities' parts. Waits for an accelerator."""
        return [*self.scaling.notes(), *(note for part in self._step_parts.values() for note in part.notes)]

    def _judged(self, by_probe: Mapping[str, Report], meta: Meta, loss: float | None) -> Report | None:
        """The verdict of the checks on the recorded steps up to this one, as of `check_step`."""
        course, step, unread = self._model.course, meta["step"], self._unread(meta)
        if self._training:
            course.look(step, by_probe["inventory"].rows)
            course.left = self.parameters.left_by_backward()
            course.unfinished = 0 if meta["complete"] else self.passes
            course.scaled = self.scaling.used and bool(meta["complete"])
        if activations := by_probe.get("activations"):
            by_probe = {**by_probe, "activations": replace(activations, rows=self.with_origins(activations.rows))}
        if self.scaling.skipped:
            unread = unread or "the GradScaler skipped the optimizer's step"
            course.skipped += self._training
        elif self._training and not unread and "grads" in by_probe:
            facts = self.parameters.facts(self._model.optimizers(), self._model.waiting_optimizers())
            gradients, updates = by_probe["grads"].rows, self.parameters.updates.values()
            course.note_ruined(step, gradients, updates, self.parameters.ruined)
            course.idles = self._model.idles(gradients)
            course.add(step, facts, gradients, updates)
            course.note_lost(without_gradient(by_probe["inventory"].rows, gradients))
            self._model.note_optimizers()
        elif self._training and not meta["complete"]:
            unused = self._model.unused_optimizers()
            if unused and self.parameters.any_reached and not self.parameters.moved_since(by_probe["inventory"]):
                course.note_unused(unused, self.passes)
                course.has_optimizers = self._model.program_trains
        measured = measured_in_step(by_probe, meta, unread, course, loss)
        steps = self._model.judged[str(meta["phase"])]
        return check_step(self._model.name, measured, meta, steps, checked=self._plan.check)

    def _report(self, probe: Probe, meta: Meta) -> Report | None:
        if isinstance(probe, InventoryProbe) and not probe.session:
            return None
        report = probe.report(self._model.name, meta)
        if probe.name == "inventory":  # whose names checks look up in the other reports
            rows = [replace(row, values={**row.values, "fqn": self.name(row.fqn)}) for row in report.rows]
            return replace(report, rows=rows)
        if isinstance(probe, GradsProbe):
            report = replace(report, rows=self.scaling.unscale(report.rows))
        report = merge_calls(report, self.name)
        seen = {row.fqn for row in report.rows}  # also the wrapper of a compiled module
        hidden = [Skipped(self.name(fqn), why) for fqn, why in self._compiled.items() if self.name(fqn) not in seen]
        if not isinstance(probe, GradsProbe):
            return replace(report, skipped=[*report.skipped, *hidden])
        missing = self.parameters.without_gradient(self._unread(meta), self._model.optimizers())
        rows = [*report.rows, *self.parameters.gradient_rows()]
        return replace(report, rows=rows, skipped=[*report.skipped, *missing, *hidden])

    def _unread(self, meta: Meta) -> str:
        """Why no gradient of a parameter was read; "" if they were, or if there were none though they were due."""
        if not self._training:
            return "it ran without gradients"
        if not meta["complete"]:
            return "gradients are read as the optimizer steps, which did not happen"
        if self._backward or self._model.has_optimizer:
            return ""
        return _BY_GRAD if self.session.arrived else "no backward() went through it"


_BY_GRAD = "torch.autograd.grad, not backward(), made the gradients: it leaves none in parameters"
