"""Columns of layers of experts: how tokens spread over them, and how sure the router is."""

from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge, Shown

_COUNT: dict[str, Any] = {"kind": Kind.COUNT, "merge": Merge.SUM}
_SIZE: dict[str, Any] = {"kind": Kind.COUNT, "alike": True, "charted": False, "compared": False}
_FIGURE: dict[str, Any] = {"kind": Kind.FIGURE, "merge": Merge.LEAST}
_SHARE: dict[str, Any] = {"kind": Kind.SHARE, "drop": 57}
DECLARED = (
    Column("expert", "Expert", kind=Kind.COUNT, identity=True, detail=True, compared=False, charted=False),
    Column("experts", "Experts", drop=41, **_SIZE),
    Column("top_k", "Top k", drop=42, **_SIZE),
    Column("tokens", "Tokens", bar=Bar.PAGE, drop=48, **_COUNT),
    Column("dead_experts", "Dead", kind=Kind.COUNT, merge=Merge.MOST, drop=60, full="Experts without a token"),
    Column("load", "Load", kind=Kind.FIGURE, merge=Merge.MOST, bar=Bar.PAGE, drop=59),
    Column("router_entropy", "Entropy in nats", shown=Shown.ASKED, **_FIGURE),
    Column("router_entropy_share", "Entropy", merge=Merge.LEAST, **_SHARE),
    Column("margin", "Margin", drop=45, **_FIGURE),
    Column("dropped", "Dropped tokens", shown=Shown.ASKED, **_COUNT),
    Column("dropped_share", "Dropped", merge=Merge.MOST, shown=Shown.SET, **_SHARE),
    Column("router_weight", "Weight", kind=Kind.FIGURE, full="Probability where chosen"),
    Column("router_probability", "Probability", kind=Kind.FIGURE, shown=Shown.ASKED),
    Column("shortfall", "Shortfall", kind=Kind.FIGURE, shown=Shown.ASKED),
)
