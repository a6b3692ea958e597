"""Columns of lists: findings of checks, hooks that were found, plugins, models of a catalog, modules of a package."""

from typing import Any

from hookcli.table.column import Column, Kind, Shown

_TEXT: dict[str, Any] = {"kind": Kind.TEXT}
LISTINGS = (
    Column("check", "Check", **_TEXT),
    Column("severity", "Severity", **_TEXT),
    Column("message", "Finding", **_TEXT),
    Column("value", "Figure", kind=Kind.JUDGED, drop=59),
    Column("threshold", "Threshold", kind=Kind.JUDGED, drop=58),
    Column("remedy", "Remedy", shown=Shown.ASKED, **_TEXT),
    Column("cause", "Cause", shown=Shown.ASKED, **_TEXT),
    Column("hint", "Hint", shown=Shown.BELOW, **_TEXT),
    Column("means", "Usually means"),
    Column("asked_by", "Asked by", drop=60),
    Column("function", "Function"),
    Column("flags", "Flags", shown=Shown.SET, drop=27),
    Column("legacy", "Legacy"),
    Column("state", "State"),
    Column("command", "Command"),
    Column("target", "Object"),
    Column("distribution", "From"),
    Column("fires", "Fires when"),
    Column("registered_by", "Registered by"),
    Column("weights", "Weights", left=True),  # another word
    Column("tasks", "Tasks", left=True),
    Column("input", "Input"),
    Column("action", "Action", **_TEXT),
    Column("rule", "Why", **_TEXT),
    Column("needed_by", "Needed by", **_TEXT),
    Column("settings", "Settings", kind=Kind.MAPPING, required=True),
    Column("attributes", "Attributes", kind=Kind.MAPPING, compared=False),
)
