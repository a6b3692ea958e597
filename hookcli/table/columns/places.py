"""Columns that say which row it is: the place in the model, the call, the tensor, the step and the rank."""

from typing import Any

from hookcli.table.column import Column, Kind, Merge, Shown

_PLACE: dict[str, Any] = {"identity": True, "compared": False, "alike": True}
_NUMBER: dict[str, Any] = {"kind": Kind.COUNT, "charted": False}

PLACES = (
    Column(
        "fqn",
        "Layer",
        kind=Kind.TEXT,
        required=True,
        identity=True,
        per_call=True,
        compared=False,
        merge=Merge.FIRST,
        judged=True,
    ),
    Column("type", "Type", kind=Kind.TEXT, per_call=True, compared=False, alike=True, drop=28),
    Column("kind", "Kind", kind=Kind.TEXT, shown=Shown.VARIED, aside=("diff",), **_PLACE),
    Column("call", "Call", kind=Kind.COUNT, shown=Shown.SET, charted=False, drop=24, **_PLACE),
    Column("calls", "Calls", shown=Shown.SET, usual=1, alike=True, drop=25, **_NUMBER),
    Column("pass", "Pass", kind=Kind.COUNT, shown=Shown.SET, charted=False, **_PLACE),
    Column("path", "Path", kind=Kind.TEXT, shown=Shown.SET, **_PLACE),
    Column("batch", "Batch", kind=Kind.COUNT, identity=True),
    Column("index", "Order", shown=Shown.ASKED, compared=False, merge=Merge.FIRST, drop=1, **_NUMBER),
    Column("order", "Order", shown=Shown.SET, compared=False, merge=Merge.LEAST, drop=26, aside=("report",), **_NUMBER),
    Column("depth", "Depth", shown=Shown.ASKED, compared=False, **_NUMBER),
    Column("name", "Name", kind=Kind.TEXT, alike=True),
    Column("id", "Id", shown=Shown.ASKED, **_NUMBER),
    Column("fqns", "Parameters", kind=Kind.NAMES, required=True, drop=51, left=True),
    Column("source", "Source", kind=Kind.SOURCE, shown=Shown.ASKED, per_call=True, compared=False, drop=38),
    Column("file", "File", kind=Kind.TEXT),
    Column("line", "Line", shown=Shown.ASKED, **_NUMBER),
    Column("module", "Module", kind=Kind.TEXT, judged=True),
    Column("operator", "Operator", drop=35),
    Column("step", "Step", shown=Shown.VARIED, identity=True, **_NUMBER),
    Column("forward", "Forward", **_NUMBER),
    Column("phase", "Phase", shown=Shown.SET, usual="train"),
    Column("rank", "Rank", charted=False, alike=True),
    Column("deviates", "Deviates"),
    Column("mark", "", shown=Shown.MARK, left=True),
    Column("note", "Note", kind=Kind.TEXT, merge=Merge.LISTED, shown=Shown.BELOW, compared=False),
    # Keys of rows that no report declares as columns
    Column("edited", "Edited", kind=Kind.TEXT, merge=Merge.LISTED, compared=False),
    Column("scores", "Scores", kind=Kind.TEXT, merge=Merge.LISTED, compared=False),
    Column("change", "Change", kind=Kind.TEXT, merge=Merge.LISTED, judged=True),
    Column("reset", "Settings", kind=Kind.TEXT),
    Column("handed_on", "Handed on", compared=False),
    Column("merged", "Merged", **_NUMBER),
    Column("folded", "Folded", kind=Kind.COUNT),
    Column("repeated", "Repeated", kind=Kind.COUNT),
    Column("input_names", "Input names", kind=Kind.NAMES, required=True, compared=False),
)
