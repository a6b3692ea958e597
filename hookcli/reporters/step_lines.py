"""Lines below the table of a recorded step: its parameter groups, where its time went, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookcli.table.formatting import duration, number, quantity, setting, size

KEYS = ("groups", "unclipped_grad", "resident_bytes", "peak_bytes")
_SETTINGS = {"lr": "learning rate", "momentum": "momentum", "betas": "betas", "weight_decay": "weight decay"}
_NORMS = {"loss": "loss", "param_grad": "gradient", "weight": "weights", "ratio": "|dw|/|w|"}
_PARTS = ("data", "forward", "backward", "optimizer", "rest")
_SHOWN = 6  # groups
_CLIPPED = 1e-5  # by less, rounding has changed the norm


def is_of_step(key: str) -> bool:
    """True for a total that these lines write."""
    return key in KEYS or key.endswith(("_seconds", "_peak_bytes"))


def before_clipping(totals: Mapping[str, Any]) -> str:
    """The gradient's norm before it was clipped, in brackets; "" if it was not."""
    before, after = totals.get("unclipped_grad"), totals.get("param_grad")
    if before is None or after is None or not abs(before - after) > _CLIPPED * before:
        return ""
    return f" ({number(before)} before clipping)"


def step_lines(totals: Mapping[str, Any]) -> list[str]:
    """The lines; none for a report of another kind."""
    parts = [f"{part} {duration(seconds)}" for part in _PARTS if (seconds := totals.get(f"{part}_seconds"))]
    own = totals.get("hookcli_seconds")
    rest = [f"hookcli's own work {duration(own)}"] if own is not None else []
    rest += [f"{size(totals['resident_bytes'])} resident"] if "resident_bytes" in totals else []
    rest += (
        [f"{size(totals['peak_bytes'])} allocated at most"]
        if "peak_bytes" in totals and "peak_phase" not in totals
        else []
    )
    lines = [f"time: {', '.join(parts)}"] if parts else []
    return [*_groups(totals.get("groups", ())), *lines, *([" · ".join(rest)] if rest else [])]


def _groups(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that the groups share in one line; a table of the rest, if there are several groups."""
    shared = [key for key in _SETTINGS if all(group[key] == groups[0][key] for group in groups[1:])]
    names = dict.fromkeys(str(group["optimizer"]) for group in groups)
    said = [f"{_SETTINGS[key]} {setting(groups[0][key])}" for key in shared if groups and groups[0][key] is not None]
    lines = [f"{', '.join(names)}{': ' * bool(said)}{', '.join(said)}"] if groups else []
    return lines + (_table(groups, [key for key in _SETTINGS if key not in shared]) if groups[1:] else [])


def _table(groups: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> list[str]:
    """A line per group, with the settings in which groups differ, and its norms."""
    columns = {key: [setting(group[key]) for group in groups] for key in settings}
    columns |= {key: [number(group.get(key)) for group in groups] for key in _NORMS}
    titles = {"group": "group", "parameters": "params"} | _SETTINGS | _NORMS
    columns = {
        "group": [str(group["group"]) for group in groups],
        "parameters": [quantity(group["parameters"]) for group in groups],
        **columns,
    }
    known = {key: [titles[key], *cells] for key, cells in columns.items() if set(cells) != {"-"}}
    widths = [max(map(len, cells)) for cells in known.values()]
    lines = ["  ".join(map(str.rjust, line, widths)) for line in zip(*known.values(), strict=True)]
    left = len(groups) - _SHOWN
    return lines[: _SHOWN + 1] + ([f"… and {left} more groups (--probe optimizer shows them)"] if left > 0 else [])
