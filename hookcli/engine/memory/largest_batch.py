"""Finds the largest batch whose training step fits into a given memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hookcli.engine.memory.profile import MemoryProfile
from hookcli.engine.memory.reports import by_column, peak_text, where
from hookcli.engine.run_info import finished
from hookcli.errors import ModelError
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import FITS
from hookcli.table.formatting import size
from hookcli.table.meta import Meta

MOST = 2**20
"""The largest batch that is tried: a model whose peak is still within the limit has nothing that grows with it."""
_FARTHEST = 64
_SEARCH = "rows: the batches that were computed to find the largest"
_CPU = (
    "kernels and workspaces are a CPU's; --device cuda has those of a GPU",
    "not included: the GPU's context, workspaces of libraries, and fragmentation, which need room too",
)


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
    best = profiles[largest or min(profiles)]
    general = () if best.info.get("simulated") == "cuda" else _CPU  # the notes of CUDA say it in detail
    meta: Meta = {**finished(best.info), "notes": [_SEARCH, *best.notes, *general]}
    totals = {"largest_batch": largest, "limit_bytes": limit, "verdict": _verdict(profiles, largest, limit, processes)}
    rows = []
    for batch, profile in sorted(profiles.items()):
        moment = profile.steady.peak.moment
        left = {"batch": batch, "highest": moment.highest, "left_bytes": limit - moment.highest}
        at = {"phase": moment.phase, "fqn": where(moment.place, moment.phase)}
        rows.append(Row(left | at | by_column(moment.held)))
    return Report("fits", best.model, FITS, rows, meta, totals, grouping="list")


def _verdict(profiles: dict[int, MemoryProfile], largest: int, limit: int, processes: int) -> str:
    if largest == MOST:
        return f"Every batch up to {MOST:,} fits into {size(limit)}: the peak hardly grows with the batch"
    over = largest + 1 if largest else min(profiles)
    above = profiles[over].steady.peak.moment
    if not largest:
        return f"Nothing fits into {size(limit)}: a batch of {over:,} takes {peak_text(above)}"
    each = f" for each of {processes} processes, {largest * processes:,} in all" if processes > 1 else ""
    left = size(limit - profiles[largest].steady.peak.bytes)
    more = peak_text(above, above.highest - limit)
    return f"Largest batch in {size(limit)}: {largest:,}{each} ({left} left); a batch of {over:,} needs {more}"


@dataclass
class BatchSearch:
    """A search for the largest batch whose peak, in bytes, is within `limit`.

    `peak_of` measures a batch; a peak must not fall as the batch grows. The answer and the next larger batch are both
    measured, never extrapolated. `peaks` holds every batch that was.
    """

    peak_of: Callable[[int], int]
    limit: int
    peaks: dict[int, int] = field(default_factory=dict)

    def largest(self, lowest: int = 1) -> int:
        """The largest batch from `lowest`; 0 if not even that is within the limit; `MOST` if nothing exceeds it."""
        if not self._fits(lowest):
            return 0
        fits, exceeds, narrowed = lowest, MOST + 1, 0
        while fits < MOST and exceeds - fits > 1:
            if exceeds > MOST:
                batch = self._further(fits)
            else:
                narrowed += 1
                batch = (fits + exceeds) // 2 if narrowed % 3 == 0 else self._at_limit(fits, exceeds)
            batch = min(max(batch, fits + 1), exceeds - 1)
            if self._fits(batch):
                fits = batch
            else:
                exceeds = batch
        return fits

    def _fits(self, batch: int) -> bool:
        self.peaks[batch] = self.peak_of(batch)
        return self.peaks[batch] <= self.limit

    def _further(self, fits: int) -> int:
        """A batch above the largest known: where the line through the last two meets the limit, or twice as large.

        At most 64 times as large where the peak hardly grows yet, as that of small batches in the optimizer's step.
        """
        before = max((batch for batch in self.peaks if batch < fits), default=fits)
        rise = self.peaks[fits] - self.peaks[before]
        guess = self._at_limit(fits, before) if rise > 0 else 2 * fits
        return guess if rise * _FARTHEST > self.peaks[fits] else min(guess, _FARTHEST * fits)

    def _at_limit(self, fits: int, other: int) -> int:
        """The batch at which the line through two peaks meets the limit."""
        rise = self.peaks[other] - self.peaks[fits]
        return fits + (self.limit - self.peaks[fits]) * (other - fits) // rise
