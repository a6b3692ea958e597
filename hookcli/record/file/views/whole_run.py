"""Collects the losses of a model, and the lines of capabilities' parts, for checks that judge its whole training."""

from __future__ import annotations

from hookcli.checks.measurements import Measurements
from hookcli.record.file.parsing import PART_KINDS
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import PartLine
from hookcli.table.losses import LossCourse


def whole_run(record: Record | None, model: str, losses: LossCourse | None) -> Measurements:
    """The measurements of all steps of a model. `record` is None as long as no part has written a line."""
    lines: dict[str, list[PartLine]] = {kind: [] for kind in PART_KINDS}
    for line in record.of_parts if record else ():
        if line.model == model:
            lines[line.kind].append(line)
    return Measurements(losses=losses, every_loss=record.losses_of(model) if record else {}, lines=lines)
