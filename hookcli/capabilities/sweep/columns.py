"""Columns of a sweep: what the model returned while a module was changed."""

from typing import Any

from hookcli.table.column import Bar, Column, Kind

_FIGURE: dict[str, Any] = {"kind": Kind.FIGURE, "judged": True}
DECLARED = (
    Column("head", "Head", identity=True, alike=True, kind=Kind.COUNT, charted=False, compared=False),
    Column("expert", "Expert", kind=Kind.COUNT, identity=True, detail=True, compared=False, charted=False),
    Column("bottleneck", "Bottleneck", kind=Kind.FLAG, compared=False),
    Column("outputs", "Outputs", kind=Kind.NAMES, compared=False, left=True),
    Column("output_change", "Output change", bar=Bar.LOG, **_FIGURE),
    Column("loss_change", "Loss change", **_FIGURE),
    Column("logit", "Logit", kind=Kind.FIGURE, drop=56),
    Column("logit_change", "Logit change", **_FIGURE),
)
