"""Lines below the table of a recorded step: its parameter groups, where its time went, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookcli.report.formatting import duration, number, quantity, setting, size

KEYS = ("groups", "unclipped_grad", "resident_bytes", "peak_bytes")
_SETTINGS = {"lr": "learning rate", "momentum": "momentum", "betas": "betas", "weight_decay": "weight decay"}
_NORMS = {"param_grad": "gradient", "weight": "weights", "ratio": "|dw|/|w|"}
_PARTS = ("data", "forward", "backward", "optimizer", "rest")
_SHOWN = 6  # groups
_CLIPPED = 1e-5  # by less, rounding has changed the norm


def is_of_step(key: str) -> bool:
    """True for a total that these lines write."""
    return key in KEYS or key.endswith("_seconds")


def before_clipping(totals: Mapping[str, Any]) -> str:
    """The gradient's norm before it was clipped, in brackets; "" if it was not."""
    before, after = totals.get("unclipped_grad"), totals.get("param_grad")
    if before is None or after is None or abs(before - after) <= _CLIPPED * before:
        return ""
    return f" ({number(before)} before clipping)"


def step_lines(totals: Mapping[str, Any]) -> list[str]:
    """The lines; none for a report of another kind."""
    parts = [f"{part} {duration(seconds)}" for part in _PARTS if (seconds := totals.get(f"{part}_seconds"))]
    own = totals.get("hookcli_seconds")
    rest = [f"hookcli's own work {duration(own)}"] if own is not None else []
    rest += [f"{size(totals['resident_bytes'])} resident"] if "resident_bytes" in totals else []
    rest += [f"{size(totals['peak_bytes'])} allocated at most"] if "peak_bytes" in totals else []
    lines = [f"time: {', '.join(parts)}"] if parts else []
    return [*_groups(totals.get("groups", ())), *lines, *([" · ".join(rest)] if rest else [])]


def _groups(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for a lone group, without the norms that the step's totals have; else one per group."""
    if len(groups) < 2:
        return [f"{group['optimizer']}: {_settings(group)}" for group in groups]
    lines = [
        f"{group['optimizer']} group {group['group']} ({quantity(group['parameters'])} parameters): "
        + ", ".join([_settings(group), *(f"{word} {number(group[key])}" for key, word in _NORMS.items() if group[key])])
        for group in groups[:_SHOWN]
    ]
    left = len(groups) - _SHOWN
    return [*lines, *([f"… and {left} more groups (--probe optimizer shows them)"] if left > 0 else [])]


def _settings(group: Mapping[str, Any]) -> str:
    return ", ".join(f"{word} {setting(group[key])}" for key, word in _SETTINGS.items() if group[key] is not None)
