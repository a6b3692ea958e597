"""The line that its part of a recorder writes. Imports `record_lines` alone: every record that is read imports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hookcli.record.file.record_lines import PartLine


@dataclass(frozen=True, slots=True)
class SignsOfStep(PartLine):
    """The number of outputs of the model that are positive, in a step."""

    kind: ClassVar[str] = "signs"

    positive: int


LINES = (SignsOfStep,)
