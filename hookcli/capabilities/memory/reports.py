"""The reports of a step's memory: by module at the peak, and over the step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import chain, pairwise

from hookcli.capabilities.memory.layout import MEMORY, TIMELINE
from hookcli.capabilities.memory.profile import Kind, MemoryProfile, Moment, Place
from hookcli.engine.run_info import finished, headless
from hookcli.table import Report, Row
from hookcli.table.columns.costs import MEMORY_KINDS
from hookcli.table.columns.layouts import with_operators
from hookcli.table.formatting import at_setting, size
from hookcli.table.meta import Meta
from hookcli.table.names import in_words


def modules_report(profile: MemoryProfile) -> Report:
    """The bytes that each module, each operator if asked for, and each part of the program holds at the peak."""
    phase = profile.steady.peak.phase
    held: dict[str, Counter[Kind]] = defaultdict(Counter)
    for (place, kind), nbytes in profile.steady.held.items():
        held["(inputs)" if kind == Kind.INPUTS else where(place, phase)][kind] += nbytes
    rows = []
    for fqn in dict.fromkeys(name for name in (*profile.types, *held) if name in held):
        source = {"source": profile.sources[fqn]} if fqn in profile.sources else {}
        values = {"fqn": fqn, "type": profile.types.get(fqn), **source, "bytes": held[fqn].total()}
        rows.append(Row(values | by_column(held[fqn])))
    columns = with_operators(MEMORY) if profile.sources else MEMORY
    return Report("memory", profile.model, columns, rows, _meta(profile), _totals(profile), grouping="disjoint")


def timeline_report(profile: MemoryProfile) -> Report:
    """A row for each operator of the step in steady state that changed the memory in use."""
    step, rows = profile.steady, []
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
        rows.append(Row(values | by_column(moment.held)))
    return Report("timeline", profile.model, TIMELINE, rows, _meta(profile), _totals(profile), grouping="moments")


REPORTS: Mapping[str, Callable[[MemoryProfile], Report]] = {"memory": modules_report, "timeline": timeline_report}
_OUTSIDE = {"forward": "(program)", "loss": "(loss)", "backward": "(loss)", "step": "(optimizer)"}
_IN_WORDS = {
    "forward": "forward, outside of the model",
    "loss": "the loss",
    "backward": "backward of the loss",
    "step": "the optimizer's step",
}


def where(place: Place, phase: str) -> str:
    """The fqn of a place, or the part of the program outside of the model that runs in this phase."""
    return _OUTSIDE[phase] if place.fqn is None else place.fqn


def by_column(held: Mapping[Kind, int]) -> dict[str, int]:
    """The bytes of each kind, by column."""
    return {column.name: held.get(kind, 0) for column, kind in zip(MEMORY_KINDS, Kind, strict=True)}


def peak_text(moment: Moment, beyond: int | None = None) -> str:
    """When a peak is: 333.9 MiB in backward of layer4.0.conv1 (aten.convolution_backward).

    With `beyond`, the bytes by which it exceeds a limit: 158.8 KiB more, in the loss (aten.sum).
    """
    fqn = moment.place.fqn
    place = _IN_WORDS[moment.phase] if fqn is None else f"{moment.phase} of {in_words(fqn)}"
    amount = size(moment.highest) if beyond is None else f"{size(beyond)} more,"
    return f"{amount} in {place} ({moment.operator})"


def without_head(info: Meta) -> dict[str, str]:
    """The second of the first lines, as a total: on a model of Transformers without the head of its usual task."""
    return {"settings": sentence} if (sentence := headless(info)) else {}


def _meta(profile: MemoryProfile) -> Meta:
    return {**finished(profile.info), "notes": list(profile.notes)}


def _totals(profile: MemoryProfile) -> dict[str, object]:
    """The peak's bytes, its place, what holds it, and the highest of each phase; also in sentences."""
    moment, phases, first = profile.steady.peak, profile.steady.by_phase(), profile.first.peak.highest
    kinds = sorted(((nbytes, kind.replace("_", " ")) for kind, nbytes in moment.held.items()), reverse=True)
    peaks = {**phases, "the first step": first}
    return {
        **{f"{phase}_peak_bytes": nbytes for phase, nbytes in phases.items()},
        "first_peak_bytes": first,
        "peak_bytes": moment.highest,
        "peak_phase": moment.phase,
        "peak_fqn": where(moment.place, moment.phase),
        "peak_operator": moment.operator,
        "verdict": f"Peak{at_setting(profile.info)}: {peak_text(moment)}",
        **without_head(profile.info),
        "held": " + ".join(f"{size(n)} {name}" for n, name in kinds if n) + f" = {size(moment.highest)}",
        "phases": "peaks: " + " · ".join(f"{name} {size(nbytes)}" for name, nbytes in peaks.items()),
    }
