"""Columns of spectra: ranks of outputs, of weights, and of updates."""

from hookcli.table.column import Bar, Column, Kind, Merge

SPECTRA = (
    Column("dimensions", "Dimensions", kind=Kind.COUNT, merge=Merge.MOST, charted=False, drop=20),
    Column("effective_rank", "Effective rank", kind=Kind.FIGURE, merge=Merge.LEAST, bar=Bar.LOG),
    Column("input_rank", "Of its input", kind=Kind.FIGURE, merge=Merge.LEAST, drop=40),
    Column("token_spread", "Token spread", kind=Kind.SHARE, merge=Merge.LEAST, drop=30),
    Column("input_spread", "Spread of input", kind=Kind.SHARE, merge=Merge.LEAST, charted=False, drop=10),
    Column("top_share", "Largest, of all", kind=Kind.SHARE, merge=Merge.MOST, drop=18),
)
"""`dimensions` is the largest possible rank; `input_` figures are those of what a module received."""
SPECTRUM = (*(column.name for column in SPECTRA), "stable_rank", "spectral_norm")
"""All figures of a spectrum. They stay together where rows become one: those of the row with the lowest rank."""
