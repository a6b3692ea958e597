"""The peak of a step as reports have it: in a sentence, in totals, and in the columns of its kinds."""

from __future__ import annotations

from typing import Any

from hookcli.engine.memory.profile import Kind, MemoryProfile, Moment, Place
from hookcli.table.columns.memory import MEMORY_KINDS
from hookcli.table.formatting import size

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


def peak_text(moment: Moment, beyond: int | None = None) -> str:
    """When a peak is: 333.9 MiB in backward of layer4.0.conv1 (aten.convolution_backward).

    With `beyond`, the bytes by which it exceeds a limit: 158.8 KiB more, in the loss (aten.sum).
    """
    fqn = moment.place.fqn
    place = _IN_WORDS[moment.phase] if fqn is None else f"{moment.phase} of {fqn or '(model)'}"
    said = size(moment.highest) if beyond is None else f"{size(beyond)} more,"
    return f"{said} in {place} ({moment.operator})"


def peak_totals(profile: MemoryProfile) -> dict[str, Any]:
    """The peak's bytes, its place, what holds it, and the highest of each phase; also in sentences."""
    moment, phases = profile.steady.peak.moment, profile.steady.by_phase()
    kinds = sorted(((moment.held.get(kind, 0), str(kind).replace("_", " ")) for kind in Kind), reverse=True)
    first = profile.first.peak.bytes
    highest = {**phases, "the first step": first}
    return {
        **{f"{phase}_peak_bytes": phases[phase] for phase in phases},
        "first_peak_bytes": first,
        "peak_bytes": moment.highest,
        "peak_phase": moment.phase,
        "peak_fqn": where(moment.place, moment.phase),
        "peak_operator": moment.operator,
        "verdict": f"Peak: {peak_text(moment)}",
        "held": " + ".join(f"{size(bytes_)} {name}" for bytes_, name in kinds if bytes_) + f" = {size(moment.highest)}",
        "phases": "peaks: " + " · ".join(f"{name} {size(value)}" for name, value in highest.items()),
    }


def kinds_of(moment: Moment) -> dict[str, int]:
    """The bytes of each kind while an operator ran, by column."""
    return {column.name: moment.held.get(kind, 0) for column, kind in zip(MEMORY_KINDS, Kind, strict=True)}
