"""Tells what --keep-bad needs, before the program starts."""

from __future__ import annotations

from importlib.util import find_spec

from hookcli.errors import UsageError
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.registry.capability import search_option


def require_search(folder: str, plan: RecordingPlan) -> None:
    """Raises UsageError without a search, and without the package that writes the tensors."""
    if not plan.searches:
        option = search_option()
        name = option.name.replace("_", "-") if option else ""
        ways = ", or ".join(f"--{name} {word}" for word in option.words) if option else "a part that has one"
        raise UsageError(f"--keep-bad: needs a search; add {ways}")
    if find_spec("safetensors") is None:
        raise UsageError("--keep-bad: needs safetensors: pip install 'hookcli[safetensors]'")
