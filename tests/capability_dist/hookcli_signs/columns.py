"""The columns that it declares; other reports know their rules, too."""

from hookcli.table.column import Column, Kind, Merge

DECLARED = (
    Column("positive", "Positive", kind=Kind.COUNT, merge=Merge.SUM),
    Column("largest", "Largest value", kind=Kind.FIGURE, merge=Merge.MOST),
)
