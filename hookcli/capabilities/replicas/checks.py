"""HK052: replicas of a model whose weights have come apart."""

from __future__ import annotations

from collections.abc import Iterator

from hookcli.capabilities.replicas.differing import apart
from hookcli.checks.base import ERROR, Check
from hookcli.checks.measurements import ReadsRecord
from hookcli.table import Finding


class ReplicasDiffer(Check):
    """Ranks that should hold the same weights do not, from some recorded step on.

    In each recorded step every rank writes a checksum of the bits of each parameter that it holds whole, after the
    optimizer's step, into its own part of the record; whoever reads the record compares them, so that no collective is
    added. Ranks should agree where DistributedDataParallel keeps them alike, or where their gradients are the same.
    Ranks with gradients of their own train their own models. Shards (FSDP, tensor parallel) and models with other
    parameters have nothing to be compared with, and buffers, such as a BatchNorm's statistics, may differ. Two weights
    that differ have the same checksum with a chance of at most one in four billion.

    If the first recorded step has the fault, the ranks began with different weights: another seed, or a broadcast that
    was forgotten. If a later one has it, something changed the weights of one rank alone.
    """

    id = "HK052"
    name = "replicas-differ"
    severity = ERROR
    means = "a broadcast that was forgotten, or weights, an optimizer's settings or a resumed state changed on one rank"
    advice = "show the record with --probe replicas --step N for the parameters"
    needs = ("record",)
    asked_by = "hookcli run --check"

    def judge(self, measured: ReadsRecord) -> Iterator[Finding]:
        if message := apart(measured.record):
            yield self.finding("", message)
