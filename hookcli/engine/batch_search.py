"""The largest batch whose memory is within a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MOST = 2**20
"""The largest batch that is tried: a model whose peak is still within the limit has nothing that grows with it."""
_FARTHEST = 64


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

        At most 64 times as large where the peak hardly grows yet, as with small batches in the optimizer's step.
        """
        before = max((batch for batch in self.peaks if batch < fits), default=fits)
        rise = self.peaks[fits] - self.peaks[before]
        guess = self._at_limit(fits, before) if rise > 0 else 2 * fits
        return guess if rise * _FARTHEST > self.peaks[fits] else min(guess, _FARTHEST * fits)

    def _at_limit(self, fits: int, other: int) -> int:
        """The batch at which the line through two peaks meets the limit."""
        rise = self.peaks[other] - self.peaks[fits]
        return fits + (self.limit - self.peaks[fits]) * (other - fits) // rise
