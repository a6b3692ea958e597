"""The line on what made a gradient large or not finite: which rank, which micro-batch, and which rows of its batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_low
from typing import NamedTuple

from hookcli.capabilities.blame.lines import APART, Blame, gradient_norm
from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.reading import Record
from hookcli.record.file.views.headlines import Aside, Remark
from hookcli.table.formatting import counted, number
from hookcli.table.losses import LossCourse

_NAMED = 3  # rows
_SOON, _LOWER = 10, 0.7  # steps; of the loss before


def headline(record: Record) -> str:
    """Net: the gradient's norm jumped to 812 at step 37, 41 times the median before: micro-batch 2 of 4 on rank 1 (97%
    of the rows' squared gradients), there row 5 of 32 (94%), most in head; all counted from 0.

    "" if there is nothing to say. Each rank has blamed its own batch. Of a jump and a gradient that was not finite soon
    after, the jump counts; of a loss that jumped and a gradient that did soon after, the loss, which has its own line,
    and so it does at any time after an update that ruined it. If the loss went on falling, it is a remark.
    """
    parts = record.parts if isinstance(record, RankedRecord) else {0: record}
    moments = moments_of(parts)
    jumped = [moment for moment in moments if moment.finite]
    bad = next((moment for moment in moments if not moment.finite), None)
    first = next((moment for moment in jumped if not bad or bad.follows(moment.step)), bad)
    if not first or any(map(first.is_of, record.courses().values())):
        return ""
    ranks = first.by_rank(parts)
    blames = {rank: blame for rank, blame in ranks.items() if blame}
    return first.placed(record, first.sentence(blames, len(ranks), len(jumped) - 1))


def went_on(record: Record, moment: _Moment) -> bool:
    """True if the loss of a model, which never jumped, is clearly lower in the end than before this moment."""
    losses = sorted(record.losses_of(moment.model).items())
    before = [loss for step, loss in losses if step < moment.step]
    after = [loss for step, loss in losses if step > moment.step]
    jumped = record.courses().get(moment.model, LossCourse()).first_jump is not None
    if jumped or not before or len(after) < _SOON:
        return False
    right_before, last = before[-max(len(before) // 4, 1) :], after[-(len(after) // 4) :]
    return median_low(last) < _LOWER * median_low(right_before)


def moments_of(parts: Mapping[int, Record]) -> list[_Moment]:
    """The moments of which some rank's part tells, without gradients that may have grown since the step before."""
    blames = [(one, part) for part in parts.values() for one in part.of(Blame) if one.passes]
    return sorted({_Moment.of(one) for one, part in blames if not may_have_grown(one, part)})


def may_have_grown(blame: Blame, record: Record) -> bool:
    """True if a large gradient may have grown over steps that were not recorded, as healthy ones do in a GAN.

    It did not grow but jump if the step right before it was recorded, if the loss jumped as well, or if it stands out
    from the recorded steps on both sides.
    """
    steps = [entry for entry in record.entries if entry.key == (blame.model, "train") and entry.complete]
    before = [entry for entry in steps if entry.step < blame.step][-1:]
    since = before[0].step if before else blame.step
    jump = record.courses().get(blame.model, LossCourse()).first_jump
    if blame.norm is None or since >= blame.step - 1 or (jump is not None and since < jump <= blame.step):
        return False
    after = [entry for entry in steps if entry.step > blame.step][:1]
    beside = record.steps([*before, *after], lambda row: "optimizer" in row or row.get("kind") == "parameter")
    return not after or blame.norm <= APART * max(map(gradient_norm, beside), default=math.inf)


class _Moment(NamedTuple):
    """A step of a model with blame; its gradient was `finite` or not."""

    step: int
    model: str
    finite: bool

    @classmethod
    def of(cls, blame: Blame) -> _Moment:
        return cls(blame.step, blame.model, blame.norm is not None)

    def follows(self, step: int | None) -> bool:
        """True if it comes soon after this step."""
        return step is not None and self.step - _SOON <= step < self.step

    def is_of(self, course: LossCourse) -> bool:
        """True if the loss tells of its cause: it jumped soon before, or at any time by an update that ruined it."""
        jump = course.first_jump
        return self.follows(jump) or (course.blow_up() is not None and jump is not None and jump < self.step)

    def placed(self, record: Record, line: str) -> str:
        """The line on a jump; as a remark if it did no harm."""
        return Remark(line, "") if line and self.finite and went_on(record, self) else line

    def by_rank(self, parts: Mapping[int, Record]) -> dict[int, Blame | None]:
        """The blames of the ranks that recorded it; None of one that has none."""
        key = self.model, "train", self.step
        return {
            rank: next((one for one in part.of(Blame) if one.passes and _Moment.of(one) == self), None)
            for rank, part in parts.items()
            if key in ((*entry.key, entry.step) for entry in part.entries)
        }

    def sentence(self, blames: Mapping[int, Blame], ranks: int, others: int) -> str:
        """The line, by the ranks' blames; `ranks` recorded the step, and the gradient jumped in `others`, too."""
        where = _where(blames, ranks) if blames else ""
        if not (blames and self.finite):
            return f"{self.model}: the gradient was not finite at step {self.step:,}: {where}" if where else ""
        norm, usual = max((one.norm or 0.0, one.usual or math.inf) for one in blames.values())
        more = f"; so it did in {counted(others, 'more recorded step')}" if others else ""
        jumped = f"the gradient's norm jumped to {number(norm)} at step {self.step:,}"
        line = f"{self.model}: {jumped}, {norm / usual:,.0f} times the median before: {where}{more}"
        return Aside(line) if isinstance(where, Aside) else line


def _where(same: Mapping[int, Blame], ranks: int) -> str:
    """The micro-batch and rank that stand out, and the rows of the batch there. `ranks`: how many recorded the step."""
    sums = {(rank, n): x for rank, one in same.items() for n, x in enumerate(one.passes)}
    rank, at = max(sums, key=sums.__getitem__)
    blame, largest, alone = same[rank], sums[rank, at], len(sums) == 1
    finite = math.isfinite(largest)
    stands_out = largest > APART * median_low(sums.values()) if finite else any(map(math.isfinite, sums.values()))
    if not (stands_out or blame.rows or len(same) < ranks):
        return Aside(_rows(blame, finite) if alone or not finite else "no micro-batch, rank or row stands out")
    micro = f"micro-batch {at} of {len(blame.passes)}" if blame.passes[1:] else ""
    where = " on ".join(filter(None, (micro, f"rank {rank}" if ranks > 1 else "")))
    share = (
        f" ({largest / math.fsum(sums.values()):.0%} of the rows' squared gradients)" if finite and not alone else ""
    )
    counted_so = "; all counted from 0" if micro or blame.rows else ""
    return ", there ".join(filter(None, (where + share, _rows(blame, finite)))) + counted_so


def _rows(blame: Blame, finite: bool) -> str:
    if not blame.rows:
        unknown = "its rows are unknown (no module with parameters returned one for each of the batch)"
        return (f"no row of {blame.size:,} stands out" if blame.size else unknown) if finite else ""
    shown = ", ".join(f"{row:,}" for row in blame.rows[:_NAMED]) + (" ..." if blame.rows[_NAMED:] else "")
    rows = f"row{'s' * (len(blame.rows) > 1)} {shown} of {blame.size:,}"
    place, mixed = blame.fqn or "the model's output", f" ({blame.mixed} mixes rows)" if blame.mixed else ""
    return f"{rows} ({blame.share:.0%}), most in {place}{mixed}" if finite else f"{rows}, first in {place}{mixed}"
