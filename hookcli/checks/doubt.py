"""Infinities of a recorded step of which nothing tells whether they are meant: they are judged by their harm."""

from __future__ import annotations

import math
from typing import Protocol

from hookcli.checks.measurements import ReadsActivations
from hookcli.table import Report
from hookcli.table.marks import UNKNOWN, is_lost
from hookcli.table.training import TrainingCourse


class ReadsHarm(ReadsActivations, Protocol):
    """Measurements of a step in which infinities may have done harm: to its loss, or to a gradient."""

    grads: Report | None
    output_grads: Report | None
    training: TrainingCourse | None
    step: int | None
    loss: float | None


def may_be_meant(measured: ReadsHarm) -> bool:
    """True if all that is not finite in a recorded step are infinities of unknown origin that do no harm."""
    origins = {row.get("scores") for row in filter(is_lost, measured.activations.rows)}
    if measured.step is None or origins != {UNKNOWN} or not math.isfinite(measured.loss or 0.0):
        return False
    course, reports = measured.training, (measured.grads, measured.output_grads)
    if course and course.scaled:  # whose gradients may overflow at any time
        return True
    left = course.left if course else None
    return math.isfinite(left or 0.0) and not any(is_lost(row) for report in reports if report for row in report.rows)
