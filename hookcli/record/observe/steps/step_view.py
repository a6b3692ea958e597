"""An open step as the parts of capabilities see it."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.record.file.record_lines import NonFinite
from hookcli.record.observe.parts import Measured
from hookcli.record.observe.steps.step import ObservedStep
from hookcli.table import Row


class OpenStepView:
    """A StepView of this step."""

    def __init__(self, step: ObservedStep) -> None:
        self._step = step

    @property
    def phase(self) -> str:
        return self._step.phase

    @property
    def number(self) -> int:
        return self._step.number

    @property
    def forwards(self) -> int:
        return self._step.forwards

    @property
    def observed_forwards(self) -> int:
        return self._step.observed_forwards

    @property
    def sees_operators(self) -> bool:
        return self._step.measured.sees_operators

    def keep(self) -> None:
        self._step.kept = True

    def losses(self, begin: int) -> list[float]:
        return self._step.losses.from_pass(begin)

    def measured(self) -> list[Measured]:
        return self._step.measured.so_far()

    def groups(self) -> list[Row]:
        return self._step.measured.parameters.group_rows()

    def with_masks(self, rows: Sequence[Row]) -> Sequence[Row]:
        return self._step.model.with_masks(rows, looked=self.sees_operators)

    def told(self, fqn: str, value: NonFinite) -> NonFinite:
        return self._step.measured.told(fqn, value)
