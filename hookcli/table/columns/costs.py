"""Columns of what modules cost: parameters, multiply-accumulates, bytes and time."""

from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge, Shown

_TIME: dict[str, Any] = {"kind": Kind.MICROSECONDS, "compared": False}
_PARTS: dict[str, Any] = {"merge": Merge.SUM, "per_call": True}

TIMES = (
    Column("forward_us", "Forward µs", "microseconds", drop=55, **_TIME, **_PARTS),
    Column("forward_self_us", "Forward self µs", "microseconds", drop=53, **_TIME, **_PARTS),
    Column("backward_us", "Backward µs", "microseconds", drop=54, **_TIME, **_PARTS),
    Column("backward_self_us", "Backward self µs", "microseconds", drop=52, **_TIME, **_PARTS),
)
"""Times of a module's calls: with its parts, and without."""
_SIDES = {("backward_us", "a"): 65, ("backward_us", "b"): 66, ("forward_us", "a"): 67, ("forward_us", "b"): 68}
SIDE_TIMES = (
    *(
        Column(
            f"{side}_{column.name}",
            f"{side.upper()} {column.title.lower()}",
            "microseconds",
            drop=_SIDES.get((column.name, side)),
            shown=Shown.FILLED if (column.name, side) in _SIDES else Shown.ASKED,
            pair=column.name,
            **_TIME,
        )
        for column in TIMES
        for side in "ab"
    ),
    Column("slowdown", "B/A", kind=Kind.FIGURE, drop=69),
)
"""Times of the two sides of a comparison, and the ratio of the inclusive ones."""
COSTS = (
    Column("params", "Params", "parameters", Kind.COUNT, merge=Merge.ONCE, per_call=True, alike=True, drop=49),
    Column(
        "params_share",
        "Params %",
        None,
        Kind.SHARE,
        merge=Merge.ONCE,
        per_call=True,
        compared=False,
        bar=Bar.SHARE,
        drop=18,
    ),
    Column("trainable", "Trainable", "parameters", Kind.COUNT, merge=Merge.ONCE, shown=Shown.ASKED, alike=True, drop=2),
    Column("macs", "MACs", "multiply-accumulates", Kind.QUANTITY, alike=True, bar=Bar.LOG, **_PARTS),
    Column("macs_share", "MACs %", None, Kind.SHARE, compared=False, bar=Bar.SHARE, drop=17, **_PARTS),
    Column("kept", "Kept", "bytes", Kind.BYTES, compared=False, bar=Bar.LOG, drop=46, **_PARTS),
    Column("read_bytes", "Read", "bytes", Kind.BYTES, drop=19, **_PARTS),
    Column("written_bytes", "Written", "bytes", Kind.BYTES, drop=20, **_PARTS),
    Column("bytes", "Bytes", "bytes", Kind.BYTES, drop=45),
    Column("size", "Bytes", "bytes", Kind.COUNT),
    Column("fired", "Fired", "times", Kind.COUNT),
    Column("us", "µs", "microseconds", Kind.MICROSECONDS, drop=47),
    *TIMES,
    *SIDE_TIMES,
)
