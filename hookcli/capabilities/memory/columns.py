"""Columns of the memory over a step, and of a limit that it is kept within."""

from hookcli.table.column import Column, Kind

DECLARED = (
    Column("change_bytes", "Change", "bytes", Kind.BYTES_CHANGE, drop=34),
    Column("left_bytes", "Left", "bytes", Kind.BYTES_CHANGE),
)
