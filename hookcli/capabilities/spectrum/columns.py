"""Columns of spectra: ranks of outputs, of weights, and of updates."""

from typing import Any

from hookcli.table.column import Bar, Column, Kind, Merge

_LEAST: dict[str, Any] = {"merge": Merge.LEAST, "lowest_of": "effective_rank"}
_MOST: dict[str, Any] = {"merge": Merge.MOST, "lowest_of": "effective_rank"}
DECLARED = (
    Column("dimensions", "Dimensions", kind=Kind.COUNT, charted=False, drop=20, **_MOST),
    Column("effective_rank", "Effective rank", kind=Kind.FIGURE, bar=Bar.LOG, **_LEAST),
    Column("input_rank", "Input rank", kind=Kind.FIGURE, drop=40, **_LEAST),
    Column("token_spread", "Token spread", kind=Kind.SHARE, drop=30, **_LEAST),
    Column("input_spread", "Input spread", kind=Kind.SHARE, charted=False, drop=10, **_LEAST),
    Column("top_share", "Top share", kind=Kind.SHARE, drop=18, **_MOST),
)
"""`dimensions` is the largest possible rank; `input_` figures describe what a module received."""
