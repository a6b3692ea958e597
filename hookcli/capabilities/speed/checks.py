"""HK064 and HK065: a run that waits for its data, and a rank that is slower than the others."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from hookcli.capabilities.speed.lines import Pace
from hookcli.checks.base import LinesCheck
from hookcli.checks.judgement import judge
from hookcli.checks.measurements import ReadsLines
from hookcli.record.file.reading import Record
from hookcli.record.file.views.verdict import whole_run
from hookcli.table import Finding
from hookcli.table.formatting import clock, counted, duration

_SHARE, _SECONDS, _EACH, _BATCHES = 0.3, 1.0, 0.01, 16
_SLOWER, _OF_STEP, _LOST = 1.3, 0.15, 1.0  # times the others; of the step; in all these steps, in seconds
_STEPS = 8
_OWN = ("data", "forward")  # the parts in which ranks that share gradients do not wait for each other


class WaitsForData(LinesCheck):
    """The program waits for its DataLoader in 30 % of its time or more.

    The wait is the main thread's time in `next()` of a DataLoader, over all steps since the first batch, without
    hookcli's own work. It is reported after 16 batches or more, if it comes to a second and to 10 ms per batch. With
    CUDA, the device must also have been idle when nine of ten batches came: otherwise it works while the program waits.
    Data that do not come from a DataLoader are not seen.
    """

    id = "HK064"
    name = "waits-for-data"
    means = "a DataLoader without worker processes, too few of them, or work that costs less if done once"
    advice = "give the DataLoader num_workers, or its Dataset less to do"
    reads = (Pace.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        lines = last_of_ranks(measured)
        waits = [line for line in lines if _waits(line)]
        if not waits:
            return
        line = max(waits, key=lambda one: one.waited / one.seconds)
        share = line.waited / line.seconds
        who = f"rank {line.rank} waits" if len(lines) > 1 else "waits"
        text = f"{who} for data {share:.0%} of the time: {clock(line.waited)} of {clock(line.seconds)}"
        makers = counted(line.workers, "worker") if line.workers else "no worker"
        text += f", for {counted(line.batches, 'batch', 'batches')} of a DataLoader with {makers}"
        if line.epochs > 1 and line.first > line.waited / 2:
            text += f"; {clock(line.first)} of it for the first batch, which it waited for {line.epochs:,} times"
        yield self.finding("", text, share)


class SlowRank(LinesCheck):
    """One rank takes 1.3 times as long as the median of all, or longer, for its data or its forward.

    The check compares the medians of each rank's last recorded steps, at least 8. The difference must be 15 % of a
    step, and a second over these steps: any rank is slow for a moment if other work runs beside it. Where ranks share
    gradients, all wait in backward for the slowest one. So the times for the forward pass and for the DataLoader are
    compared.
    """

    id = "HK065"
    name = "slow-rank"
    means = "a slower machine or disk, other work on it, or more data than the others have"
    advice = "see what else runs there; show the record with --ranks each"
    reads = (Pace.kind,)

    def judge(self, measured: ReadsLines) -> Iterator[Finding]:
        lines = [line for line in last_of_ranks(measured) if line.steps >= _STEPS]
        for part in _OWN if len(lines) > 1 else ():
            times = {line.rank: line.parts.get(part, 0.0) for line in lines}
            rank = max(times, key=times.__getitem__)
            usual = median(times.values()) if len(times) > 2 else min(times.values())
            step = median(sum(line.parts.values()) for line in lines)
            more = times[rank] - usual
            lost = more * min(line.steps for line in lines)
            if times[rank] >= _SLOWER * usual and more >= _OF_STEP * step and lost >= _LOST:
                other = "the other rank's" if len(times) == 2 else "the median of all ranks"
                text = f"rank {rank} is slow: {_WORDS[part]} takes {duration(times[rank])} of a step"
                yield self.finding("", f"{text}, {other} {duration(usual)}", more)


def headline(record: Record) -> list[str]:
    """Net: waits for data 62% of the time: 4.9 s of 8.0 s in 120 batches ...; none if nothing is worth saying."""
    models = [line.model for line in record.of(Pace)][-1:]
    judged = ((model, judge([WaitsForData(), SlowRank()], whole_run(record, model)).findings) for model in models)
    return [f"{model}: {one.message}" for model, findings in judged for one in findings]


_WORDS = {"data": "waiting for its data", "forward": "its forward"}


def last_of_ranks(measured: ReadsLines) -> list[Pace]:
    """The last line of each rank."""
    lines = {line.rank: line for line in measured.lines[Pace.kind] if isinstance(line, Pace)}
    return [lines[rank] for rank in sorted(lines)]


def _waits(line: Pace) -> bool:
    enough = line.batches >= _BATCHES and line.waited >= max(_SECONDS, _EACH * line.batches)
    return enough and line.waited >= _SHARE * line.seconds and line.starved >= 0.9 * line.batches
