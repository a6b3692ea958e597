"""Columns of what modules cost: parameters, multiply-accumulates, bytes, time, memory and communication."""

from __future__ import annotations

from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge, Shown

_TIME: dict[str, Any] = {"kind": Kind.MICROSECONDS, "compared": False}
_PARTS: dict[str, Any] = {"merge": Merge.SUM, "per_call": True}
_CALLS: dict[str, Any] = {**_TIME, **_PARTS, "bar": Bar.PAGE, "about": "time"}
_MOVED: dict[str, Any] = {**_PARTS, "bar": Bar.PAGE, "aside": ("modules",)}

TIMES = (
    Column("forward_us", "Forward µs", "microseconds", drop=55, **_CALLS),
    Column("forward_self_us", "Forward self µs", "microseconds", drop=53, **_CALLS),
    Column("backward_us", "Backward µs", "microseconds", drop=54, **_CALLS),
    Column("backward_self_us", "Backward self µs", "microseconds", drop=52, **_CALLS),
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
            merge=Merge.SUM,
            **_TIME,
        )
        for column in TIMES
        for side in "ab"
    ),
    Column("slowdown", "B/A", kind=Kind.FIGURE, drop=69),
)
"""Times of the two sides of a comparison, and the ratio of the inclusive ones."""
_HELD: dict[str, Any] = {"unit": "parameters", "kind": Kind.COUNT, "merge": Merge.ONCE, "alike": True}
_SHARE: dict[str, Any] = {"kind": Kind.SHARE, "compared": False, "bar": Bar.SHARE, "aside": ("report", "modules")}
_BYTES: dict[str, Any] = {"unit": "bytes", "kind": Kind.BYTES}
COSTS = (
    Column("params", "Params", total="parameters", per_call=True, bar=Bar.PAGE, drop=49, **_HELD),
    Column("params_share", "Params %", merge=Merge.ONCE, per_call=True, drop=18, **_SHARE),
    Column("trainable", "Trainable", shown=Shown.ASKED, bar=Bar.PAGE, drop=2, **_HELD),
    Column("macs", "MACs", "multiply-accumulates", Kind.QUANTITY, total="MACs", alike=True, bar=Bar.SHARE, **_PARTS),
    Column("macs_share", "MACs %", drop=17, **_SHARE, **_PARTS),
    Column("kept", "Kept", compared=False, bar=Bar.SHARE, drop=46, full="Bytes kept for backward", **_BYTES, **_PARTS),
    Column("read_bytes", "Read", drop=19, full="Bytes read", **_BYTES, **_MOVED),
    Column("written_bytes", "Written", drop=20, full="Bytes written", **_BYTES, **_MOVED),
    Column("bytes", "Bytes", bar=Bar.PAGE, drop=45, **_BYTES),
    Column("size", "Bytes", "bytes", Kind.COUNT, bar=Bar.PAGE),
    Column("us", "µs", "microseconds", Kind.MICROSECONDS, bar=Bar.PAGE, drop=47),
    *TIMES,
    *SIDE_TIMES,
)


MEMORY_KINDS = tuple(
    Column(f"{name}_bytes", title, "bytes", Kind.BYTES, shown=Shown.SET, drop=drop)
    for name, title, drop in (
        ("param", "Parameters", 33),
        ("buffer", "Buffers", 7),
        ("grad", "Gradients", 31),
        ("optimizer", "Optimizer", 32),
        ("input", "Inputs", 8),
        ("activation", "Activations", 36),
        ("temporary", "Temporaries", 10),
        ("workspace", "Workspace", 9),
    )
)
"""Bytes in use, by kind, in the order of the engine's `Kind`."""
MEMORY = (
    *MEMORY_KINDS,
    Column("highest", "Peak", "bytes", Kind.BYTES),
    Column("resident_bytes", "Resident memory", "bytes", Kind.BYTES),
    Column("peak_bytes", "Peak of allocated memory", "bytes", Kind.BYTES),
)


_FIGURE: dict[str, Any] = {"kind": Kind.FIGURE}
