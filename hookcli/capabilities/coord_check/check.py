"""A coordinate check: a training for each width and seed, on one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter

from torch import nn

from hookcli.capabilities.coord_check.results import Results
from hookcli.capabilities.coord_check.training import Plan, Trained
from hookcli.engine.prepare import PreparedRun, prepare_run
from hookcli.engine.run_info import finished
from hookcli.engine.setting import Feedback, Setting
from hookcli.engine.step import Step
from hookcli.errors import UsageError
from hookcli.sources.base import Recipe
from hookcli.table.meta import Meta
from hookcli.tensors import tree
from hookcli.tensors.random_state import restored_random_states


@dataclass
class CoordCheck:
    """The trainings of the recipes' models, by the width that is called `name`; `about` says how they are trained."""

    name: str
    recipes: Mapping[float, Recipe]
    setting: Setting
    step: Step
    plan: Plan
    seeds: int
    about: str
    feedback: Feedback = Feedback()
    _runs: list[Trained] = field(default_factory=list)
    _first: PreparedRun | None = None

    def run(self) -> Results:
        """Train all. An interrupt after the first seed has the report on the seeds that are done, as its `reports`.

        Raises UsageError where the input depends on the width, ModelError where a model fails.
        """
        began = perf_counter()
        try:
            with restored_random_states():
                for seed in range(self.seeds):
                    self._runs += [self.trained(width, seed) for width in self.recipes]
                again = self.trained(min(self.recipes), 0)
        except KeyboardInterrupt as error:
            if self._runs:
                error.reports = (self.results(began, None).report(),)  # type: ignore[attr-defined]
            raise
        return self.results(began, again)

    def trained(self, width: float, seed: int) -> Trained:
        """Build and train one model, which is gone afterwards. All get the batch that was made for the first one."""
        place, first = f"{self.name}={width}", self._first
        setting = replace(self.setting, seed=self.setting.seed + seed)
        if first is not None:
            setting = replace(setting, data=None, needs_input=False)
        run = prepare_run(self.recipes[width], setting, self.step, self.feedback)
        if first is None:
            self._first = first = replace(run, model=nn.Identity())
        shapes = [", ".join(tree.shape_text(x) for _, x in tree.leaves(one.inputs)) for one in (first, run)]
        if shapes[1] and shapes[0] != shapes[1]:
            differ = f"{shapes[0]} at {self.name}={min(self.recipes)}, {shapes[1]} at {place}"
            raise UsageError(
                f"the model's example input depends on the width: {differ}; all widths need the same batch"
            )
        self.feedback.stage(f"training {run.name} at {place}, seed {seed + 1} of {self.seeds}")
        return self.plan.train(replace(run, inputs=first.inputs, step=first.step), width, seed, f"at {place}: ")

    def results(self, began: float, again: Trained | None) -> Results:
        """The results until now; without `again`, the repeated first training, they are of a part."""
        assert self._first is not None
        info: Meta = {**self._first.info, "optimizer": self.about, "complete": again is not None}
        info["seconds"] = perf_counter() - began
        return Results(self._first.name, self.name, self._runs, again, finished(info))
