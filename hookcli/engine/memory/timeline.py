"""The report of a step's timeline: a row for each operator that changed the memory in use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

from hookcli.engine.memory.profile import Kind, MemoryProfile, Place, StepMemory
from hookcli.report import Report, Row
from hookcli.report.columns import MEMORY_KINDS, TIMELINE

_OUTSIDE = {"forward": "(program)", "loss": "(loss)", "backward": "(loss)", "step": "(optimizer)"}


def timeline_report(profile: MemoryProfile) -> Report:
    """The timeline of the step in steady state."""
    step = profile.steady
    peak = step.peak.moment
    totals = {"peak_bytes": peak.highest, "peak_phase": peak.phase, "peak_fqn": peak.place.fqn}
    meta = {**profile.info.to_meta(), "notes": list(profile.notes)}
    return Report("timeline", profile.model, TIMELINE, list(_rows(step)), meta, totals, grouping="moments")


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
        kinds = {column.name: moment.held.get(kind, 0) for column, kind in zip(MEMORY_KINDS, Kind, strict=True)}
        yield Row(values | kinds)


def where(place: Place, phase: str) -> str:
    """The fqn of a place, or the part of the program outside of the model that runs in this phase."""
    return _OUTSIDE[phase] if place.fqn is None else place.fqn
