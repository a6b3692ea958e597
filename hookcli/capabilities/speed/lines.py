"""The line of a record that says how fast a run goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from hookcli.record.file.record_lines import PartLine


@dataclass(frozen=True, slots=True)
class Pace(PartLine):
    """How the time of a rank went by until this step; a later line replaces it.

    The main thread took `batches` from DataLoaders, and of the `seconds` since it asked for the first one it waited
    `waited`: `first` of them for the first batches of `epochs` iterators. As `starved` of the batches came, the device
    had nothing left to do. `workers`: the number of the last DataLoader's processes.

    `steps` have been recorded; `parts` are the median seconds of "data", "forward", "backward", "optimizer", and "rest"
    in the last of them.
    """

    kind: ClassVar[str] = "pace"

    batches: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    first: float = 0.0
    epochs: int = 0
    starved: int = 0
    workers: int = 0
    steps: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    rank: int = 0

    def of_rank(self, rank: int) -> Pace:
        return replace(self, rank=rank)


LINES = (Pace,)
