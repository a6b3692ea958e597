"""Runs the models of `hookcli diff`. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from hookcli.commands.diff_sides import BuiltSide, CommonInput, SideSpec, build, common_input
from hookcli.commands.model import Selection
from hookcli.commands.options import Options
from hookcli.commands.output import remark
from hookcli.commands.probe_command import feedback_of
from hookcli.commands.progress import Progress
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.batches import DataBatches
from hookcli.engine.capture import Hooking, capture_run
from hookcli.engine.gradients import again_with_gradients, with_gradients
from hookcli.engine.lockstep import Side, compare
from hookcli.engine.lockstep.side import alignment_of, compiled, copy_weights
from hookcli.engine.looked import require_casts
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.run_info import describe_run, torchvision_version
from hookcli.engine.setting import compile_settings
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, UsageError
from hookcli.hooks.edits.base import parse_edit
from hookcli.hooks.parts import Select
from hookcli.hooks.torch_private.programs import compiler
from hookcli.probes.base import Probe
from hookcli.probes.parameters import settings_of
from hookcli.registry import load
from hookcli.table import Report
from hookcli.table.meta import WEIGHTS, Meta
from hookcli.table.names import no_match
from hookcli.table.times import times_of


@dataclass(frozen=True)
class Pair:
    """Two models to compare, and their input."""

    built: tuple[BuiltSide, BuiltSide]
    common: CommonInput
    same_weights: bool


@dataclass(frozen=True)
class ModelRuns:
    """Runs models for a comparison, with the options that both sides share."""

    options: Options
    progress: Progress
    step: Step
    backward: bool = False
    time: bool = False
    float64: bool = False
    isolate: bool = False

    def pair(self, a: SideSpec, b: SideSpec, same_weights: bool) -> Pair:
        """Build two models that are to be compared, and make the input of both."""
        left, right = (self.built(spec, self.backward) for spec in (a, b))
        common = common_input(left, right, self.options, self.backward)
        models = left.prepared.model, right.prepared.model
        if same_weights and (problem := copy_weights(*models, alignment_of(*models))):
            remark(problem, self.options)
        return Pair((left, right), common, same_weights)

    def compare(self, pair: Pair, tolerance: Tolerance) -> Report:
        """Compare two models, run module by module in step."""
        left, right = pair.built
        common, selection = pair.common, Selection(self.options)
        self._remark_unknown(tolerance.settings, pair)
        sides = [self.side(built, own) for built, own in zip(pair.built, common.first, strict=True)]
        sides = [replace(side, compile=side.compile or x.compiled) for side, x in zip(sides, pair.built, strict=True)]
        if self.isolate and any(side.compile for side in sides):
            raise UsageError("--isolate: what runs inside a compiled program can't get another input")
        left.prepared.feedback.stage(f"running {left.recipe.name} and {right.recipe.name} in step")
        step = replace(self.step_of(left, self.backward), target=common.data and common.data.first.target)
        info: Meta = {**self._both(common.described, common.data), "same_weights": pair.same_weights}

        def attempt(gradients: bool) -> Report:
            return compare(
                *sides,
                tolerance=tolerance,
                step=with_gradients(step, info) if gradients else step,
                select=selection.among(left.prepared.model),
                seed=self.options.seed,
                info=info,
                feedback=left.prepared.feedback,
                batches=common.each(),
                total=common.data.total if common.data else None,
                ops=self.options.ops,
                time=self.time,
                float64=self.float64,
                isolate=self.isolate,
            )

        report = again_with_gradients(attempt, step)
        selection.require_some()
        if common.data and "batches" in report.meta:
            common.data.remark_if_short(report.meta["batches"], left.prepared.feedback.remark)
        return report

    def _remark_unknown(self, allowed: Sequence[str], pair: Pair) -> None:
        """Say which of the settings that are allowed to differ no module of either model has."""
        modules = [module for built in pair.built for module in built.prepared.model.modules()] if allowed else []
        names = sorted({name for module in modules for name in settings_of(module, floats=True)})
        for pattern in allowed:
            if not any(fnmatchcase(name, pattern) for name in names):
                remark(f"--allow-settings: {no_match(pattern, names, 'setting')}", self.options)

    def like(self, saved: Sequence[Report], spec: SideSpec) -> list[Report]:
        """The reports of a model under the probes that made saved reports."""
        reports = []
        for report in saved:
            if report.probe not in ("shapes", "inputs", "activations", "grads"):
                raise UsageError(
                    f"a saved report of {report.probe} can't be compared with a model; save the model's report, too"
                )
            kinds = {row.get("kind") for row in report.rows if row.get("kind")}
            probe: Probe = load("probes", report.probe)(*(f"{kind}s" for kind in kinds if report.probe == "grads"))
            built = self.built(spec, probe.needs_backward)
            common = common_input(built, built, self.options, probe.needs_backward)
            own = replace(self, options=replace(self.options, ops=report.meta.get("ops")), time=bool(times_of(report)))
            reports += own.observed(built, common.first[0], common.described, [probe], data=common.of_side(0))
        return reports

    def observed(
        self,
        built: BuiltSide,
        inputs: Any,
        described: str,
        probes: Sequence[Probe],
        select: Select | None = None,
        data: DataBatches | None = None,
    ) -> list[Report]:
        """The reports of one model, run under these probes; `described` is its input in words.

        `select` narrows instead of --match and --type, and `data` has the batches that `inputs` are the first of.
        """
        side = self.side(built, inputs)
        step = side.step(self.step_of(built, any(probe.needs_backward for probe in probes)))
        run = PreparedRun.of(side.model, inputs, replace(step, target=data and data.first.target), built.recipe.name)
        info: Meta = {**run.info, **side.described, **self._both(described, data)}
        narrow = select or Selection(self.options).among(side.model)
        hooking = Hooking(narrow, side.edits, side.fastpath, ops=self.options.ops, time=self.time)
        hooking = replace(hooking, emulate_casts=side.emulate_casts)
        self.progress.stage(f"running {built.recipe.name}")
        with ExitStack() as stack:
            if built.tree:
                stack.enter_context(built.tree())
            if side.compile:
                stack.enter_context(compiled(side.model, side.compile))
            return capture_run(replace(run, info=info, data=data), probes, hooking)

    def built(self, spec: SideSpec, backward: bool) -> BuiltSide:
        """Build a side's model. Errors name the side."""
        feedback = feedback_of(self.options, self.progress, label=f"{spec.label}: ")
        try:
            return build(spec, backward, feedback)
        except HookcliError as error:
            raise type(error)(f"{spec.label}: {error}", error.reports) from error

    def side(self, built: BuiltSide, inputs: Any) -> Side:
        """A built side, and how it runs."""
        with built.tree() if built.tree else nullcontext():
            edits = [parse_edit(text, built.spec.options.seed) for text in built.spec.options.edit]
        model, spec, own = built.prepared.model, built.spec, built.spec.own
        if own.emulate_casts:
            require_casts([own.compile] if own.compile else [*built.compiled], bool(own.compile))
        return Side(
            model,
            inputs,
            name=spec.text,
            fastpath=spec.options.fastpath,
            edits=edits,
            compile={"": compiler(compile_settings(own.compile))} if own.compile else {},
            amp=getattr(torch, own.amp) if own.amp else None,
            attention=own.attention,
            emulate_casts=own.emulate_casts,
            tree=built.tree,
            info={
                **describe_run(model, inputs),
                "seed": built.setting.seed,
                **built.recipe.meta,
                WEIGHTS: built.prepared.info.get(WEIGHTS, built.setting.weights),
            },
        )

    def step_of(self, built: BuiltSide, backward: bool) -> Step:
        """The step as asked for, with the loss that suits the model if none was given."""
        step = replace(self.step, backward=backward)
        suits = backward and not (step.loss or step.backward_vector)
        return replace(step, loss=built.recipe.loss) if suits else step

    def _both(self, described: str, data: DataBatches | None) -> Meta:
        """The entries of `meta` that are the same for both sides."""
        values: Meta = {"data": data.typed} if data else {"fill": self.options.fill}
        return {"input": described, **torchvision_version(), **values}
