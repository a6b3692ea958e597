"""The results of a coordinate check: the slopes of each module, or all figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hookcli.capabilities.coord_check.layout import COLUMNS, POINTS
from hookcli.capabilities.coord_check.slopes import LIMIT, Growth, in_a_word, slope, verdict
from hookcli.capabilities.coord_check.training import Trained
from hookcli.errors import UsageError
from hookcli.table import Report, Row, Skipped
from hookcli.table.columns import columns_named, names
from hookcli.table.formatting import listed
from hookcli.table.meta import Meta, with_notes

AGREES = 1e-3  # relative: two trainings alike, in another order of sums


@dataclass(frozen=True)
class Results:
    """Trainings of a model at several values of the argument `width`; `again` repeats the first of them."""

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
        rows = [Row(self.row(fqn, found) | {"index": n}) for n, (fqn, found) in enumerate(growths.items())]
        low, *_, high = self.widths
        growing = verdict([growth for found in growths.values() for growth in found], f"{low} to {high}")
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
            if found := slope(of_kind):
                yield Growth(fqn, kind, found)

    def row(self, fqn: str, growths: Sequence[Growth]) -> dict[str, Any]:
        """The values of a module; its sizes are means over the seeds."""
        row: dict[str, Any] = {"fqn": fqn, "type": self.runs[0].types[fqn], "with_width": in_a_word(growths)}
        for name, width in {"size_narrowest": self.widths[0], "size_widest": self.widths[-1]}.items():
            row[name] = fmean(run.figures[fqn][self.steps].size for run in self.runs if run.width == width)
        for growth in growths:
            row |= {f"{growth.kind}_slope": growth.slope.value, f"{growth.kind}_slope_error": growth.slope.error}
        return row

    def diverging(self) -> str:
        """The sentence on trainings that did not stay finite; "" if all did."""
        broken = sorted((run for run in self.runs if run.broken), key=lambda run: (run.steps, run.width))
        if not broken:
            return ""
        first, widths = broken[0], sorted({run.width for run in broken})
        if first.steps < 0:
            return f"{first.broken} is not finite at initialization ({self.width}={first.width}): nothing was trained"
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
        yield "Size: mean absolute value of what a module returns; change: that of its change since initialization"
        yield f"slopes: of log2(size) over log2({self.width}), ± standard errors; growth: above {LIMIT} by two of these"
        narrow = [run for run in self.runs if run.width == self.widths[0]]
        if len({str([of_module[:1] for of_module in run.figures.values()]) for run in narrow}) < len(narrow):
            yield "seeds: some give the same weights, as if the model seeded PyTorch itself: errors are too small"
        if self.again and not alike(narrow[0], self.again):
            yield f"not deterministic: a second training at {self.width}={self.widths[0]} has other figures"


def alike(a: Trained, b: Trained) -> bool:
    """True if two trainings have the same sizes but for rounding."""
    pairs = (pair for fqn in a.figures for pair in zip(a.figures[fqn], b.figures.get(fqn, ()), strict=False))
    return all(math.isclose(one.size, other.size, rel_tol=AGREES) for one, other in pairs)
