"""The columns that it declares; other reports know their rules, too."""

from hookcli.table.column import Column, Kind, Merge

DECLARED = (
    Column("positive", "Positive", kind=Kind.COUNT, merge=Merge.SUM),
    Column("positive_outputs", "Positive outputs", kind=Kind.COUNT, merge=Merge.SUM),
    Column("largest", "Largest value", kind=Kind.FIGURE, merge=Merge.MOST),
)
CHARTS = {"positive_outputs": "Positive outputs"}
"""On the page of a record: the columns of the one row that its part reports of a step."""
