"""The lines on where the time of a run goes."""

from __future__ import annotations

from hookcli.capabilities.speed.checks import SlowRank, WaitsForData
from hookcli.capabilities.speed.lines import Pace
from hookcli.checks.judgement import judge
from hookcli.record.file.reading import Record
from hookcli.record.file.views.verdict import whole_run


def headline(record: Record) -> list[str]:
    """Net: waits for data 62% of the time: 4.9 s of 8.0 s in 120 batches ...; none if nothing is worth saying."""
    lines = record.of(Pace)
    if not lines:
        return []
    model = lines[-1].model
    found = judge([WaitsForData(), SlowRank()], whole_run(record, model)).findings
    return [f"{model}: {one.message}" for one in found]
