"""A coordinate check: a training for each width and seed, on one batch, and the slopes of each module."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import perf_counter
from typing import Any

from torch import nn

from hookcli.capabilities.coord_check.layout import COLUMNS, POINTS
from hookcli.capabilities.coord_check.rates import Rates
from hookcli.capabilities.coord_check.slopes import LIMIT, Growth, in_a_word, slope, verdict
from hookcli.capabilities.coord_check.training import AGREES, Plan, Trained
from hookcli.engine.prepare import PreparedRun, prepare_run
from hookcli.engine.run_info import finished
from hookcli.engine.setting import Feedback, Setting
from hookcli.engine.step import Step
from hookcli.errors import UsageError, kept_if_interrupted
from hookcli.sources.base import Recipe
from hookcli.table import Report, Row, Skipped
from hookcli.table.columns import columns_named, names
from hookcli.table.formatting import listed
from hookcli.table.meta import Meta, with_notes
from hookcli.tensors import tree
from hookcli.tensors.random_state import restored_random_states


@dataclass(frozen=True)
class Results:
    """Trainings of a model at several values of the argument `width`; `again` repeats the first."""

    model: str
    width: str
    runs: Sequence[Trained]
    again: Trained | None
    meta: Meta

    @property
    def widths(self) -> list[float]:
        return sorted({run.width for run in self.runs})

    @property
    def steps(self) -> int:
        """The last step after which all trainings have figures; -1 for none."""
        return min(run.steps for run in self.runs)

    def report(self) -> Report:
        """A row for each module that all widths have, with its slopes after the last step.

        Raises UsageError if there is none.
        """
        followed = [fqn for fqn in self.runs[0].figures if all(fqn in run.figures for run in self.runs)]
        diverging, skipped = self.diverging(), [*self.skipped(followed)]
        if not (followed or diverging):
            raise UsageError(f"no module could be followed: {skipped[-1].reason if skipped else 'none was called'}")
        growths = {fqn: [*self.growths(fqn)] for fqn in (followed if self.steps >= 0 else ())}
        rows = [
            Row(self.row(fqn, module_growths) | {"index": n}) for n, (fqn, module_growths) in enumerate(growths.items())
        ]
        low, *_, high = self.widths
        growing = verdict(
            [growth for module_growths in growths.values() for growth in module_growths], f"{low} to {high}"
        )
        columns = columns_named(*names(COLUMNS), size_narrowest=f"At {low}", size_widest=f"At {high}")
        totals = {"verdict": diverging or growing, "runs": len(self.runs)}
        meta = with_notes(self.meta, *self.notes(f"{growing} (after step {self.steps})" if diverging else ""))
        return Report("coord-check", self.model, columns, rows, meta, totals, skipped, grouping="list")

    def points(self) -> Report:
        """A row for each module, width, seed and step."""
        rows = [
            Row(dict(zip(names(POINTS), (fqn, run.types[fqn], run.width, run.seed, step, *figures), strict=True)))
            for run in self.runs
            for fqn, of_module in run.figures.items()
            for step, figures in enumerate(of_module)
        ]
        return Report("coord-points", self.model, POINTS, rows, self.meta, grouping="list")

    def growths(self, fqn: str) -> Iterator[Growth]:
        """The slopes of a module, as far as it has any."""
        pairs = [(run.width, run.figures[fqn]) for run in self.runs]
        points = {"initial": [(width, figures[0].size) for width, figures in pairs]}
        if self.steps > 0:
            points["size"] = [(width, figures[self.steps].size) for width, figures in pairs]
            points["change"] = [(width, figures[self.steps].change) for width, figures in pairs]
        for kind, of_kind in points.items():
            if fit := slope(of_kind):
                yield Growth(fqn, kind, fit)

    def row(self, fqn: str, growths: Sequence[Growth]) -> dict[str, Any]:
        """The values of a module; its sizes are means over the seeds."""
        row: dict[str, Any] = {"fqn": fqn, "type": self.runs[0].types[fqn], "with_width": in_a_word(growths)}
        for name, width in (("size_narrowest", self.widths[0]), ("size_widest", self.widths[-1])):
            row[name] = fmean(run.figures[fqn][self.steps].size for run in self.runs if run.width == width)
        for growth in growths:
            kind, one = growth.kind, growth.slope
            row |= {f"{kind}_growth": str(one), f"{kind}_slope": one.value, f"{kind}_slope_error": one.error}
        return row

    def diverging(self) -> str:
        """The sentence on trainings that did not stay finite; "" if all did."""
        broken = sorted((run for run in self.runs if run.broken), key=lambda run: (run.steps, run.width))
        if not broken:
            return ""
        first, widths = broken[0], sorted({run.width for run in broken})
        if first.steps < 0:
            where = f"{first.broken} is not finite at initialization ({self.width}={first.width})"
            return f"{where[0].upper()}{where[1:]}: nothing was trained"
        what = f"{first.broken} is not finite after step {first.steps + 1}"
        if widths == self.widths:
            return f"Training diverges at every width ({what} at {self.width}={first.width}): lower --lr"
        others = listed([width for width in self.widths if width not in widths])
        where = f"Training diverges at {self.width}={listed(widths)} ({what})"
        return f"{where}, but not at {others}: hyperparameters will not transfer"

    def skipped(self, followed: Sequence[str]) -> Iterator[Skipped]:
        """The modules without figures in one of the trainings, each with the first reason."""
        reasons: dict[str, str] = {}
        for run in self.runs:
            reasons = run.unseen | reasons
        for run in self.runs:
            for fqn in (fqn for other in self.runs for fqn in other.figures if fqn not in run.figures):
                reasons.setdefault(fqn, f"not in the model at {self.width}={run.width}")
        yield from (Skipped(fqn, reason) for fqn, reason in reasons.items())

    def notes(self, before: str) -> Iterator[str]:
        """How to read the figures, those `before` a divergence, and what may be wrong with them."""
        if before and self.steps > 0:
            yield before
        yield "Size: mean absolute value of what a module returns; change: the same of its change since initialization"
        yield f"slopes: of log2(size) over log2({self.width}), ± standard errors; growth: above {LIMIT} by two of these"
        narrow = [run for run in self.runs if run.width == self.widths[0]]
        if self.steps >= 0 and len({str([x[:1] for x in run.figures.values()]) for run in narrow}) < len(narrow):
            yield "seeds: some give the same weights, as if the model seeded PyTorch itself: errors are too small"
        pairs = zip(narrow[0].figures.values(), self.again.figures.values() if self.again else (), strict=False)
        both = (pair for lists in pairs for pair in zip(*lists, strict=False))
        if not all(math.isclose(one.size, other.size, rel_tol=AGREES) for one, other in both):
            yield f"not deterministic: a second training at {self.width}={self.widths[0]} has other figures"


@dataclass
class CoordCheck:
    """The trainings of the recipes' models, by the width that is called `name`; `about` says how they are trained.

    Of several `plans` each has a learning rate.
    """

    name: str
    recipes: Mapping[float, Recipe]
    setting: Setting
    step: Step
    plans: Sequence[Plan]
    seeds: int
    about: str
    feedback: Feedback = Feedback()
    _runs: list[Trained] = field(default_factory=list)
    _shapes: set[str] = field(default_factory=set)  # of all parameters of a model
    _first: PreparedRun | None = None

    def run(self) -> Results | Rates:
        """Train all. An interrupt after the first seed has the report on the seeds that are done, as its `reports`.

        Raises UsageError where the input depends on the width, or several learning rates have no loss to lower;
        ModelError where a model fails.
        """
        began = perf_counter()
        so_far = kept_if_interrupted(lambda: [self.results(began, None).report()] if self._runs else [])
        with so_far, restored_random_states():
            for seed in range(self.seeds):
                self._runs += [self.trained(width, seed, plan) for width in self.recipes for plan in self.plans]
                if len(self._shapes) == 1:
                    raise UsageError(f"--arg {self.name}: no parameter's shape depends on it, so it is not a width")
            again = self.trained(min(self.recipes), 0, self.plans[0])
        return self.results(began, again)

    def trained(self, width: float, seed: int, plan: Plan) -> Trained:
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
        rate = "" if plan.rate is None else f", lr {plan.rate:g}"
        self.feedback.stage(f"training {run.name} at {place}{rate}, seed {seed + 1} of {self.seeds}")
        trained = plan.train(replace(run, inputs=first.inputs, step=first.step), width, seed, f"at {place}: ")
        if len(self.plans) > 1 and first.info["loss"] in ("sum", "mean"):
            raise UsageError("several --lr need a loss to lower: give --loss, or a model with its own", option="lr")
        self._shapes.add(str([tree.shape_text(p) for p in run.model.parameters()]))
        return trained

    def results(self, began: float, again: Trained | None) -> Results | Rates:
        """The results until now; without `again`, the repeated first training, they are of a part."""
        assert self._first is not None
        info: Meta = {**self._first.info, "complete": again is not None}
        info["optimizer"] = f"{self.about}, loss {info['loss']}"
        info["seconds"] = perf_counter() - began
        kind = Rates if len(self.plans) > 1 else Results
        return kind(self._first.name, self.name, self._runs, again, finished(info))
