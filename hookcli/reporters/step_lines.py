"""Lines below the table of a recorded step: its parameter groups, where its time went, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookcli.table import Column, Kind, Row
from hookcli.table.columns import names
from hookcli.table.columns.recorded import GROUP_LINES, STEP_TOTALS
from hookcli.table.columns.training import STEP_PARTS
from hookcli.table.formatting import cell, duration, number, setting, size
from hookcli.table.stats import norm

_TOTALS = names(STEP_TOTALS)
_PARTS = names(STEP_PARTS)
_SHOWN = 6  # groups
_CLIPPED = 1e-5  # by less, rounding has changed the norm


def is_of_step(key: str) -> bool:
    """True for a total that these lines write."""
    return key == "groups" or key in _TOTALS or key.endswith("_peak_bytes")


def before_clipping(totals: Mapping[str, Any]) -> str:
    """The gradient's norm as backward left it, in brackets; "" if it is still that.

    Clipping makes it smaller, and zero only if the norm is infinite; `zero_grad(set_to_none=False)` makes it zero.
    """
    before, after = totals.get("unclipped_grad"), totals.get("param_grad")
    taken = [group.get("param_grad") for group in totals.get("groups", ())]
    if taken and None not in taken:
        after = norm(taken)  # as the norm before: two optimizers may have the same parameters
    if before is None or after is None or not abs(before - after) > _CLIPPED * before:
        return ""
    if after == 0:
        return f" ({number(before)} before the program cleared it)"
    return f" ({number(before)} {'before clipping' if before > after else 'as backward left it'})"


def step_lines(totals: Mapping[str, Any]) -> list[str]:
    """The lines; none for a report of another kind."""
    parts = [f"{part.removesuffix('_seconds')} {duration(seconds)}" for part in _PARTS if (seconds := totals.get(part))]
    own, peak = totals.get("hookcli_seconds"), "peak_bytes" in totals and "peak_phase" not in totals
    rest = [f"hookcli's own work {duration(own)}"] if own is not None else []
    rest += [f"{size(totals['resident_bytes'])} resident"] if "resident_bytes" in totals else []
    rest += [f"{size(totals['peak_bytes'])} allocated at most"] if peak else []
    lines = [f"time: {', '.join(parts)}"] if parts else []
    groups = totals.get("groups")
    return [*(_groups(groups) if groups else []), *lines, *([" · ".join(rest)] if rest else [])]


def _groups(groups: Sequence[Mapping[str, object]]) -> list[str]:
    """The settings that the groups share in one line; a table of the rest, if there are several groups."""
    settings = [column for column in GROUP_LINES if column.kind in (Kind.SETTING, Kind.SETTINGS)]
    shared = [c for c in settings if all(group[c.name] == groups[0][c.name] for group in groups)]
    optimizers = dict.fromkeys(str(group["optimizer"]) for group in groups)
    texts = [f"{c.title.lower()} {setting(value)}" for c in shared if (value := groups[0][c.name]) is not None]
    line = f"{', '.join(optimizers)}{': ' * bool(texts)}{', '.join(texts)}"
    return [line, *(_table(groups, [column for column in GROUP_LINES if column not in shared]) if groups[1:] else [])]


def _table(groups: Sequence[Mapping[str, object]], columns: Sequence[Column]) -> list[str]:
    """A line per group, with the settings in which groups differ, and its norms."""
    cells = {column.title.lower(): [_cell(group.get(column.name), column) for group in groups] for column in columns}
    filled = [[title, *texts] for title, texts in cells.items() if set(texts) != {"-"}]
    widths = [max(map(len, texts)) for texts in filled]
    lines = ["  ".join(map(str.rjust, line, widths)) for line in zip(*filled, strict=True)]
    left = len(groups) - _SHOWN
    return lines[: _SHOWN + 1] + ([f"… and {left} more groups (--probe optimizer shows them)"] if left > 0 else [])


def _cell(value: Any, column: Column) -> str:
    return cell(Row({column.name: value}), column) if column.kind != Kind.LOSS else number(value)
