"""HK025: repeated runs with one seed give different results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from hookcli.checks.base import ERROR, Check
from hookcli.checks.measurements import ReadsInventory
from hookcli.table import Finding, Report


class _ReadsRepeatedRuns(ReadsInventory, Protocol):
    again: Sequence[Report]


class Nondeterminism(Check):
    """The same input, weights and seed gave different bits when the run was repeated.

    With --repeat 2 the run is repeated from the same state of PyTorch's random generators, and checksums of the bits of
    every module output and every parameter gradient are compared. The finding names the first tensor that differs, and
    how many do. On an accelerator, some kernels add in no fixed order; on a CPU the cause is nearly always a random
    number that torch.manual_seed does not control (random, numpy), or state kept from call to call.
    """

    id = "HK025"
    name = "nondeterminism"
    severity = ERROR
    means = "a random source that torch.manual_seed does not control, state kept from call to call, or atomic additions"
    advice = "seed random and numpy; try torch.use_deterministic_algorithms(True)"
    follows = ("HK028", "HK029")
    needs = ("inventory", "again")
    asked_by = "--repeat 2"

    def judge(self, measured: _ReadsRepeatedRuns) -> Iterator[Finding]:
        first = _bits(measured.inventory)
        for number, report in enumerate(measured.again, 2):
            other = _bits(report)
            differing = [key for key in {**first, **other} if first.get(key) != other.get(key)]
            if differing:
                fqn, of, *_ = differing[0]
                message = f"{of} differs in run {number}, first here; {len(differing)} of {len(first)} tensors do"
                yield self.finding(fqn, message, len(differing))
                return


def _bits(report: Report) -> dict[tuple[str, str, int, str, int], int]:
    """Checksums in the order in which modules return and gradients arrive."""
    rows = [row for row in report.rows if row["kind"] == "bits"]
    return {(r.fqn, r["of"], r["call"], r["path"], n): r["sum"] for n, r in enumerate(rows)}
