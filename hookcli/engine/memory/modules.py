"""The report of memory at the peak of a step: a row for each module or operator, and for each part of the program
outside of the model."""

from __future__ import annotations

from collections import Counter, defaultdict

from hookcli.engine.memory.peak import peak_totals, where
from hookcli.engine.memory.profile import Kind, MemoryProfile
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import MEMORY, with_operators
from hookcli.table.columns.memory import MEMORY_KINDS


def modules_report(profile: MemoryProfile) -> Report:
    """The bytes that each module, and each operator if asked for, holds at the peak of the step in steady state."""
    step = profile.steady
    held: dict[str, Counter[Kind]] = defaultdict(Counter)
    for (place, kind), size in step.peak.held.items():
        held["(inputs)" if kind == Kind.INPUTS else where(place, step.peak.moment.phase)][kind] += size
    places = {fqn: profile.types.get(fqn) for fqn in (*profile.types, *held) if fqn in held}
    rows = [_row(fqn, kind, held[fqn], profile.sources.get(fqn)) for fqn, kind in places.items()]
    meta = {**profile.info.to_meta(), "notes": list(profile.notes)}
    columns = with_operators(MEMORY) if profile.sources else MEMORY
    return Report("memory", profile.model, columns, rows, meta, peak_totals(profile), grouping="disjoint")


def _row(fqn: str, type_name: str | None, sizes: Counter[Kind], source: str | None) -> Row:
    kinds = {column.name: sizes[kind] for column, kind in zip(MEMORY_KINDS, Kind, strict=True)}
    called_at = {"source": source} if source else {}
    return Row({"fqn": fqn, "type": type_name, **called_at, "bytes": sizes.total(), **kinds})
