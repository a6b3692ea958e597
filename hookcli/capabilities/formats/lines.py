"""The line of a record that says what rounding costs in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hookcli.record.file.record_lines import PartLine


@dataclass(frozen=True, slots=True)
class Rounding(PartLine):
    """The verdict on the tensors of a recorded step; `loses`: a format keeps too little of some tensor."""

    kind: ClassVar[str] = "rounding"

    verdict: str = ""
    loses: bool = False


LINES = (Rounding,)
