"""Columns of autograd nodes."""

from hookcli.table.column import Column, Kind, Shown

DECLARED = (
    Column("node", "Node", kind=Kind.TEXT),
    Column("next", "Next", kind=Kind.NUMBERS, shown=Shown.ASKED),
    Column("fired", "Fired", "times", Kind.COUNT),
    Column("in_shape", "Gradient in", kind=Kind.SHAPE, drop=43),
    Column("out_shape", "Gradient out", kind=Kind.SHAPE, drop=41),
)
"""`next`: the ids of the nodes that get a node's gradients. Shapes describe incoming and outgoing gradients."""
