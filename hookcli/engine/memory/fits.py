"""The report of the largest batch whose training step fits into a given memory."""

from __future__ import annotations

from collections.abc import Callable

from hookcli.engine.memory.largest_batch import MOST, BatchSearch
from hookcli.engine.memory.peak import kinds_of, peak_text, where
from hookcli.engine.memory.profile import MemoryProfile
from hookcli.errors import ModelError
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import FITS
from hookcli.table.formatting import size

_CPU = "kernels and workspaces are a CPU's; --device cuda has those of a GPU"
_NOT_INCLUDED = "not included: the GPU's context, workspaces of libraries, and fragmentation, which need room too"


def fits_report(profile_of: Callable[[int], MemoryProfile], limit: int, processes: int = 1) -> Report:
    """The largest batch whose peak is within `limit` bytes, with all batches that were simulated to find it.

    `profile_of` simulates a batch, of each of so many `processes`. Where a batch of one can't be trained, as with batch
    normalization of one value, the smallest is two.
    """
    profiles: dict[int, MemoryProfile] = {}

    def peak_of(batch: int) -> int:
        profiles[batch] = profile_of(batch)
        return profiles[batch].steady.peak.bytes

    search = BatchSearch(peak_of, limit)
    try:
        largest = search.largest()
    except ModelError:
        if profiles:
            raise
        largest = search.largest(lowest=2)
    shown = profiles[largest or min(profiles)]
    general = [] if shown.info.simulated == "cuda" else [_CPU, _NOT_INCLUDED]  # the notes of CUDA say it in detail
    meta = {**shown.info.to_meta(), "notes": [*shown.notes, *general]}
    totals = {"largest_batch": largest, "limit_bytes": limit, "verdict": _verdict(profiles, largest, limit, processes)}
    rows = [_row(batch, profiles[batch], limit) for batch in sorted(profiles)]
    return Report("fits", shown.model, FITS, rows, meta, totals, grouping="list")


def _verdict(profiles: dict[int, MemoryProfile], largest: int, limit: int, processes: int) -> str:
    if largest == MOST:
        return f"Every batch up to {MOST:,} fits into {size(limit)}: the peak hardly grows with the batch"
    over = largest + 1 if largest else min(profiles)
    above = profiles[over].steady.peak.moment
    if not largest:
        return f"Nothing fits into {size(limit)}: a batch of {over:,} takes {peak_text(above)}"
    each = f" for each of {processes} processes, {largest * processes:,} in all" if processes > 1 else ""
    most = f"{largest:,}{each}"
    left = size(limit - profiles[largest].steady.peak.bytes)
    more = peak_text(above, above.highest - limit)
    return f"Largest batch in {size(limit)}: {most} ({left} left); a batch of {over:,} needs {more}"


def _row(batch: int, profile: MemoryProfile, limit: int) -> Row:
    moment = profile.steady.peak.moment
    left = {"batch": batch, "highest": moment.highest, "left_bytes": limit - moment.highest}
    return Row(left | {"phase": moment.phase, "fqn": where(moment.place, moment.phase)} | kinds_of(moment))
