"""The line of a record that says how a training learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hookcli.record.file.record_lines import PartLine


@dataclass(frozen=True, slots=True)
class Learning(PartLine):
    """A recorded step that began with the gradients of steps before it, or the first that tells what its loss is.

    `left` is the number of recorded steps up to this one that began so, of the `judged` ones. If the loss is the mean
    cross-entropy of a choice among classes, `classes` is their number, and `items` that of the choices in the step;
    both are 0 if it is not.
    """

    kind: ClassVar[str] = "learning"

    left: int = 0
    judged: int = 0
    classes: int = 0
    items: int = 0


LINES = (Learning,)
