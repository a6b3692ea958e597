"""The line on what made a gradient large or not finite: which rank, which micro-batch, and which rows of its batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_low

from hookcli.capabilities.blame.lines import APART, Blame
from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.reading import Record
from hookcli.table.formatting import counted, number

_NAMED = 3  # rows
_SOON = 10  # steps


def headline(record: Record) -> str:
    """Net: the gradient's norm jumped to 812 at step 37, 41 times the median before: micro-batch 2 of 4 on rank 1 (97%
    of the rows' squared gradients), there row 5 of 32 (94%), most in head; all counted from 0.

    "" if there is nothing to say. Each rank has blamed its own batch. Of a jump and a gradient that was not finite soon
    after, the jump counts; of a loss that jumped and a gradient that did soon after, the loss, which has its own line,
    and so it does at any time after an update that ruined it.
    """
    parts = record.parts if isinstance(record, RankedRecord) else {0: record}
    every = sorted({_place(one) for one in record.of(Blame) if one.passes})
    bad, jumped = ([place for place in every if place[2] is finite] for finite in (False, True))
    before = [place for place in jumped if not bad or bad[0][0] - _SOON <= place[0] < bad[0][0]]
    if not (first := next(iter((*before, *bad)), None)):
        return ""
    step, model, finite = first
    jumps = ((one.first_jump, one.blow_up()) for one in record.courses().values())
    if any(jump is not None and jump < step and (blown or step - _SOON <= jump) for jump, blown in jumps):
        return ""
    ranks = [rank for rank, part in parts.items() if (model, "train", step) in ((*e.key, e.step) for e in part.entries)]
    same = {rank: one for rank in ranks for one in parts[rank].of(Blame) if one.passes and _place(one) == first}
    where = _where(same, len(ranks)) if same else ""
    if not finite or not same:
        return f"{model}: the gradient was not finite at step {step:,}: {where}" if where else ""
    norm, usual = max((one.norm or 0.0, one.usual or math.inf) for one in same.values())
    others = f"; so it did in {counted(len(jumped) - 1, 'more recorded step')}" if jumped[1:] else ""
    times = f"{norm / usual:,.0f} times the median before"
    return f"{model}: the gradient's norm jumped to {number(norm)} at step {step:,}, {times}: {where}{others}"


def _place(blame: Blame) -> tuple[int, str, bool]:
    return blame.step, blame.model, blame.norm is not None


def _where(same: Mapping[int, Blame], ranks: int) -> str:
    """The micro-batch and rank that stand out, and the rows of the batch there. `ranks`: how many recorded the step."""
    sums = {(rank, n): x for rank, one in same.items() for n, x in enumerate(one.passes)}
    rank, at = max(sums, key=sums.__getitem__)
    blame, largest, alone = same[rank], sums[rank, at], len(sums) == 1
    finite = math.isfinite(largest)
    stands_out = largest > APART * median_low(sums.values()) if finite else any(map(math.isfinite, sums.values()))
    if not (stands_out or blame.rows or len(same) < ranks):
        return _rows(blame, finite) if alone or not finite else "no micro-batch, rank or row stands out"
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
