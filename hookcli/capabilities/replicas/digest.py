"""Checksums of parameters that other ranks may hold, too: reading the record compares them, without a collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from torch import nn

from hookcli.capabilities.replicas.layout import CHECKSUMS
from hookcli.table import Report, Row, Skipped
from hookcli.table.meta import Meta
from hookcli.tensors import tree
from hookcli.tensors.checksum import checksums


def weights_digest(
    model: str, module: nn.Module, name: Callable[[str], str], meta: Meta, group: Sequence[int]
) -> tuple[Report, str]:
    """A row for each parameter that this process holds whole, with a checksum of its bits; RecordedStep's `weights`.

    `group`: the ranks that a wrapper keeps alike, if any does.
    """
    held = {name(fqn): p for fqn, p in module.named_parameters()}
    whole = {fqn: p for fqn, p in held.items() if tree.is_plain(p)}
    rows = [
        Row({"fqn": fqn, "shape": tree.shape_of(p), "dtype": tree.dtype_text(p), "checksum": f"{number % 2**64:016x}"})
        for (fqn, p), number in zip(whole.items(), checksums(list(whole.values())), strict=True)
    ]
    reasons = {fqn: _SHARDED if tree.is_sharded(p) else type(p).__name__ for fqn, p in held.items() if fqn not in whole}
    report = Report("replicas", model, CHECKSUMS, rows, meta, {}, [Skipped(*item) for item in reasons.items()])
    kinds = [(row.fqn, row["shape"], row["dtype"]) for row in rows]
    texts = (repr((group, kinds)), repr([row["checksum"] for row in rows])) if rows else ()
    return report, "".join(blake2b(text.encode(), digest_size=8).hexdigest() for text in texts)


_SHARDED = "sharded: each rank has its own part, and nothing to compare it with"
