"""Tells what does not go with --inside-compiled, before the program starts."""

from __future__ import annotations

from hookcli.errors import UsageError
from hookcli.record.observe.recording_plan import RecordingPlan


def require_no_operators(wanted: bool, plan: RecordingPlan) -> None:
    """Raises UsageError if operators are recorded, too."""
    if plan.ops:
        raise UsageError("--ops and --inside-compiled: compiled programs have no such operators; give one of them")
