"""A request for a model's memory: its settings, and the reports that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hookcli import registry
from hookcli.engine.capture import capture_recipe
from hookcli.engine.feedback import Feedback
from hookcli.engine.inputs import arguments
from hookcli.engine.memory.largest_batch import fits_report
from hookcli.engine.memory.parallel import one_process
from hookcli.engine.memory.plan import MemoryPlan
from hookcli.engine.memory.profile import MemoryProfile
from hookcli.engine.memory.reports import REPORTS
from hookcli.engine.memory.simulate import simulate
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.setting import Setting
from hookcli.engine.step import Step
from hookcli.sources.base import Recipe, copy_model
from hookcli.table import Report
from hookcli.table.formatting import counted, listed, macs, size


@dataclass(frozen=True)
class MemoryRequest:
    """The step whose memory is wanted, of one of the setting's `parts` where these are processes in `parallel`.

    `narrow` makes, from the modules' types by name, the test of the modules whose rows are wanted.
    """

    recipe: Recipe
    setting: Setting
    plan: MemoryPlan
    step: Step = Step()
    feedback: Feedback = Feedback()
    narrow: Callable[[Mapping[str, str]], Callable[[str], bool]] | None = None

    def reports(self, names: Sequence[str]) -> list[Report]:
        """The reports of these names: "memory" by module, and the "timeline"; the first one has the verdict."""
        profile = self._profile(self.setting, self.plan)
        saved = self._saved(profile) if profile.checkpointed else {}
        reports = [REPORTS[name](profile) for name in names]
        if self.narrow is not None:
            wanted = self.narrow(profile.types)
            reports = [replace(report, rows=[row for row in report.rows if wanted(row.fqn)]) for report in reports]
        added = [saved, *(saved | {"verdict": ""} for _ in names[1:])]
        return [replace(report, totals={**report.totals, **new}) for report, new in zip(reports, added, strict=True)]

    def report(self) -> Report:
        """The report by module."""
        return self.reports(["memory"])[0]

    def fits(self, limit: int) -> Report:
        """The largest batch, of each process, whose peak is within so many bytes."""
        parts = self.setting.parts if self.recipe.batched else 1
        return fits_report(lambda n: self._profile(replace(self.setting, batch=n * parts), self.plan), limit, parts)

    def _profile(self, setting: Setting, plan: MemoryPlan) -> MemoryProfile:
        profile = simulate(self.recipe, setting, plan, step=self.step, feedback=self.feedback)
        return one_process(profile, setting.parallel, setting.parts) if setting.parallel else profile

    def _saved(self, profile: MemoryProfile) -> dict[str, object]:
        """The effect of checkpointing: the peak without it, and the MACs that are computed again."""
        plain = self._profile(self.setting, replace(self.plan, checkpoint=())).steady.peak.bytes
        peak = profile.steady.peak.bytes
        alone = replace(self.setting, part=0, parts=1, batch=None) if self.setting.batch is None else self.setting
        shapes = capture_recipe(self.recipe, registry.load("probes", "shapes"), alone, feedback=self.feedback)[0]
        again = sum(row["macs"] or 0 for row in shapes.rows if row.fqn in profile.checkpointed)
        whole = 3 * shapes.totals["macs"]  # a backward pass takes two matrix products for each of the forward's
        modules = f"{counted(len(profile.checkpointed), 'module')} ({listed(list(profile.checkpointed), 3)})"
        gain = f"takes the peak from {size(plain)} to {size(peak)} ({peak / plain - 1:+.0%})"
        cost = f", and computes {macs(again)} again ({again / whole:+.0%} of a step)" if whole else ""
        sentence = f"Checkpointing {modules} {gain}{cost}"
        return {"plain_peak_bytes": plain, "recomputed_macs": again, "checkpointing": sentence}


def memory_of(run: PreparedRun, backward: bool) -> Report:
    """The memory of an AdamW step, or without backward of a forward, of a copy of a run's model on the run's inputs."""
    args, kwargs = arguments(run.inputs)
    recipe = Recipe(run.name, partial(copy_model, run.model), example=lambda model: kwargs or tuple(args))
    on_cuda = any(parameter.is_cuda for parameter in run.model.parameters())
    plan = MemoryPlan(inference=not backward, device="cuda" if on_cuda else "cpu")
    return MemoryRequest(recipe, Setting(train=None), plan, run.step).report()
