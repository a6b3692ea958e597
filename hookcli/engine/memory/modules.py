"""The report of memory at the peak of a step: a row for each module, and for each part of the program outside it."""

from __future__ import annotations

from collections import Counter, defaultdict

from hookcli.engine.memory.peak import peak_totals, where
from hookcli.engine.memory.profile import Kind, MemoryProfile
from hookcli.report import Report, Row
from hookcli.report.columns import MEMORY, MEMORY_KINDS


def modules_report(profile: MemoryProfile) -> Report:
    """The bytes that each module holds at the peak of the step in steady state."""
    step = profile.steady
    held: dict[str, Counter[Kind]] = defaultdict(Counter)
    for (place, kind), size in step.peak.held.items():
        held["(inputs)" if kind == Kind.INPUTS else where(place, step.peak.moment.phase)][kind] += size
    rows = [_row(fqn, kind, held.pop(fqn)) for fqn, kind in profile.types.items() if fqn in held]
    rows += [_row(fqn, None, sizes) for fqn, sizes in held.items()]
    meta = {**profile.info.to_meta(), "notes": list(profile.notes)}
    return Report("memory", profile.model, MEMORY, rows, meta, peak_totals(profile), grouping="disjoint")


def _row(fqn: str, type_name: str | None, sizes: Counter[Kind]) -> Row:
    kinds = {column.name: sizes[kind] for column, kind in zip(MEMORY_KINDS, Kind, strict=True)}
    return Row({"fqn": fqn, "type": type_name, "bytes": sizes.total(), **kinds})
