"""Tells what --keep-bad needs, before the program starts."""

from __future__ import annotations

from importlib.util import find_spec

from hookcli.errors import UsageError
from hookcli.record.observe.recording_plan import RecordingPlan


def require_search(folder: str, plan: RecordingPlan) -> None:
    """Raises UsageError without a search, and without the package that writes the tensors."""
    if plan.first_bad is None:
        raise UsageError("--keep-bad: needs a search; add --first-bad report, or --first-bad stop")
    if find_spec("safetensors") is None:
        raise UsageError("--keep-bad: needs safetensors: pip install 'hookcli[safetensors]'")
