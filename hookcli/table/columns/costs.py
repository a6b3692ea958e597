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
SIDE_TIMES = (
    *(
        Column(f"{side}_{key}_us", f"{side.upper()} {key} µs", "microseconds", drop=drop, pair=f"{key}_us", **_TIME)
        for key, side, drop in (
            ("backward", "a", 65),
            ("backward", "b", 66),
            ("forward", "a", 67),
            ("forward", "b", 68),
        )
    ),
    *(
        Column(f"{side}_{key}_self_us", f"{side.upper()} {key} self µs", "microseconds", shown=Shown.ASKED, **_TIME)
        for key in ("forward", "backward")
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
