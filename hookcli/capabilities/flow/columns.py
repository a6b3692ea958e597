"""Columns of calls and of what flows between them."""

from hookcli.table.column import Column, Kind

DECLARED = (
    Column("number", "Number"),
    Column("inputs", "From", kind=Kind.NUMBERS),
)
"""`number` counts the calls of one function in one call of a module, from 1; `inputs` are the ids of calls."""
