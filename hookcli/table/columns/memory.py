"""Columns of memory: bytes in use by kind, at a time or at the peak."""

from hookcli.table.column import Column, Kind, Shown

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
    Column("change_bytes", "Change", "bytes", Kind.BYTES_CHANGE, drop=34),
    Column("left_bytes", "Left", "bytes", Kind.BYTES_CHANGE),
    Column("highest", "Peak", "bytes", Kind.BYTES),
    Column("resident_bytes", "Resident memory", "bytes", Kind.BYTES),
    Column("peak_bytes", "Peak of allocated memory", "bytes", Kind.BYTES),
)
