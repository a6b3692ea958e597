"""The report of a step's timeline: a row for each operator that changed the memory in use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

from hookcli.engine.memory.peak import kinds_of, peak_totals, where
from hookcli.engine.memory.profile import MemoryProfile, StepMemory
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import TIMELINE


def timeline_report(profile: MemoryProfile) -> Report:
    """The timeline of the step in steady state."""
    meta = {**profile.info.to_meta(), "notes": list(profile.notes)}
    totals = peak_totals(profile)
    return Report("timeline", profile.model, TIMELINE, list(_rows(profile.steady)), meta, totals, grouping="moments")


def _rows(step: StepMemory) -> Iterator[Row]:
    ends = chain([step.before], (moment.bytes for moment in step.timeline))
    for moment, (before, after) in zip(step.timeline, pairwise(ends), strict=True):
        values = {
            "index": moment.index,
            "phase": moment.phase,
            "fqn": where(moment.place, moment.phase),
            "operator": moment.operator,
            "change_bytes": after - before,
            "bytes": after,
            "highest": moment.highest,
        }
        yield Row(values | kinds_of(moment))
