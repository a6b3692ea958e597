"""The best of several learning rates at each width, by the loss after the last step, and whether it moves.

This is figure 1 of Yang et al. 2022 ("Tensor Programs V", arXiv 2203.03466) on one batch: in muP a narrow and a
wide model have the same best learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from hookcli.capabilities.coord_check.layout import rate_columns, rate_key
from hookcli.capabilities.coord_check.slopes import ERRORS
from hookcli.capabilities.coord_check.training import AGREES, Trained
from hookcli.table import Report, Row
from hookcli.table.formatting import counted, listed, percent
from hookcli.table.meta import Meta, with_notes

TIE = 0.02
"""A learning rate is as good as the best if its loss is higher by at most this share of what the best took off the loss
at initialization: rates beside the best often are, and which of them is lowest is then chance."""


@dataclass(frozen=True)
class Best:
    """The learning rates at one width: the mean loss with each (inf where a training diverged), and the best of them.

    `alike`: the best, and all that are as good.
    """

    width: float
    losses: Mapping[float, float]
    rate: float
    alike: Sequence[float]
    initial: float

    @property
    def learns(self) -> bool:
        """True if the best rate lowers the loss at initialization, which is false if all trainings diverge."""
        return self.losses[self.rate] < self.initial


def best_rate(width: float, losses: Mapping[float, Sequence[float]], initial: float) -> Best:
    """The best of the learning rates with these losses, one for each seed, which began at `initial` on average."""
    means = {rate: fmean(of_rate) for rate, of_rate in losses.items()}
    best = min(means, key=lambda rate: means[rate])
    tie = TIE * max(initial - means[best], 0)
    alike = [rate for rate in losses if math.isfinite(means[rate]) and is_tie(losses[rate], losses[best], tie)]
    return Best(width, means, best, alike, initial)


def is_tie(losses: Sequence[float], best: Sequence[float], tie: float) -> bool:
    """True if losses are above the best ones by no more than `tie`, or by no more than two standard errors.

    The same seeds began with the same weights, so differences are taken seed by seed. If all are above, no spread makes
    a tie.
    """
    differences = [one - other for one, other in zip(losses, best, strict=True)]
    mean = fmean(differences)
    if mean <= tie or len(differences) == 1:
        return mean <= tie
    return min(differences) <= 0 and mean <= ERRORS * stdev(differences) / math.sqrt(len(differences))


@dataclass(frozen=True)
class Rates:
    """Trainings of a model with several learning rates, at several values of the argument `width`.

    `again` repeats the first.
    """

    model: str
    width: str
    runs: Sequence[Trained]
    again: Trained | None
    meta: Meta

    def report(self) -> Report:
        """A row for each width, with the loss after the last step of each learning rate, as a mean over the seeds."""
        widths = [self.at(width) for width in sorted({run.width for run in self.runs})]
        rates = [*widths[0].losses]
        rows = []
        for one in widths:
            others = listed([f"{rate:g}" for rate in one.alike if rate != one.rate])
            values = {"width": one.width, "best_rate": one.rate if one.learns else None, "as_good": others}
            rows.append(Row(values | {rate_key(rate): loss for rate, loss in one.losses.items()}))
        totals = {"verdict": verdict(widths, self.width), "runs": len(self.runs)}
        meta = with_notes(self.meta, *self.notes())
        return Report("coord-rates", self.model, rate_columns(rates), rows, meta, totals, grouping="list")

    def at(self, width: float) -> Best:
        """The learning rates at a width."""
        losses: dict[float, list[float]] = {}
        runs = [run for run in self.runs if run.width == width]
        for run in runs:
            losses.setdefault(run.rate or 0.0, []).append(math.inf if run.broken else run.losses[-1])
        return best_rate(width, losses, fmean(run.losses[0] for run in runs))

    def notes(self) -> Iterator[str]:
        """How to read the figures, and what may be wrong with them."""
        seeds = len({run.seed for run in self.runs})
        steps = max(len(run.losses) for run in self.runs) - 1
        yield f"below each learning rate: the loss after {counted(steps, 'step')}, mean of {counted(seeds, 'seed')}"
        several = ", or two standard errors, and one seed is no higher"
        spread = "; one seed has no spread" if seeds == 1 else several
        yield f"as good: above the best loss by at most {percent(TIE)} of what training took off{spread}"
        narrow = [run.losses for run in self.runs if (run.width, run.rate) == (self.runs[0].width, self.runs[0].rate)]
        if len({*map(str, narrow)}) < len(narrow):
            yield "seeds: some give the same losses, as if the model seeded PyTorch itself: they have no spread"
        first = self.runs[0].losses
        pairs = zip(first, self.again.losses if self.again else first, strict=False)
        if not all(math.isclose(one, other, rel_tol=AGREES) for one, other in pairs):
            yield f"not deterministic: a second training at {self.width}={self.runs[0].width} has other losses"


def verdict(widths: Sequence[Best], name: str) -> str:
    """The sentence on whether all widths have the same best learning rate, and if not, from which width on."""
    narrow, wide = widths[0], widths[-1]
    if useless := [one.width for one in widths if not one.learns]:
        return f"No learning rate of these lowers the loss at {name}={listed(useless)}: give others, or more --steps"
    if (since := first_moved(widths)) is not None:
        places = f"from {place(narrow, name)} to {place(wide, name)}"
        return f"The best learning rate moves {places}: it stops transferring from {since} on"
    for one in (narrow, wide):
        if 2 * len(one.alike) > len(one.losses):
            many = f"{len(one.alike)} of {len(one.losses)} learning rates are as good at {name}={one.width}"
            return f"Too easy to tell: {many}; give fewer --steps, real --data, or rates further apart"
    common = [rate for rate in narrow.alike if all(rate in one.alike for one in widths)]
    if not common:
        return f"No learning rate is best at every {name}, nor does the best one clearly move: give more --seeds"
    return staying(narrow, common, f"from {name}={narrow.width} to {wide.width}")


def first_moved(widths: Sequence[Best]) -> float | None:
    """The first width from which on no learning rate is as good as the best that was so at the smallest width."""
    since = None
    for one in reversed(widths):
        if {*one.alike} & {*widths[0].alike}:
            break
        since = one.width
    return since


def staying(narrow: Best, common: Sequence[float], span: str) -> str:
    """The sentence on the learning rates that are `common` to all widths of this span, the smallest of them `narrow`.

    At an end of the list, a rate beyond it may be the best.
    """
    smallest, *_, largest = narrow.losses
    inner = [rate for rate in common if rate not in (smallest, largest)]
    rate = min(inner or common, key=lambda rate: (rate != narrow.rate, narrow.losses[rate]))
    if inner:
        return f"The best learning rate stays {rate:g} {span}: it transfers"
    end, others = ("smallest", "smaller") if rate == smallest else ("largest", "larger")
    return f"The best learning rate is the {end} of these, {rate:g}, {span}: give {others} ones to tell more"


def place(one: Best, name: str) -> str:
    """The best learning rate at a width, in words."""
    smallest, *_, largest = one.losses
    end = {smallest: " (the smallest tried)", largest: " (the largest tried)"}.get(one.rate, "")
    return f"{one.rate:g}{end} at {name}={one.width}"
