"""Columns of communication hooks: a bucket of gradients before and after, and how far from the exact mean."""

from typing import Any

from hookcli.table.column import Column, Kind

_FIGURE: dict[str, Any] = {"kind": Kind.FIGURE}
DECLARED = (
    Column("hook", "Hook", kind=Kind.TEXT, identity=True),
    Column("bucket", "Bucket", kind=Kind.COUNT, identity=True),
    Column("elements", "Elements", "elements", Kind.COUNT, drop=50),
    Column("bytes_before", "Bytes before", "bytes", Kind.BYTES),
    Column("bytes_after", "Bytes after", "bytes", Kind.BYTES),
    Column("exact_l2", "Exact L2", drop=47, **_FIGURE),
    Column("after_l2", "Result L2", drop=49, **_FIGURE),
    Column("relative_l2", "Rel. error", **_FIGURE),
    Column("error_max", "Max error", drop=48, **_FIGURE),
)
