"""Runs of communication hooks on ranks."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch.distributed as dist
from capabilities.comm import comm_jobs
from ranks import run_ranks
from torch import Tensor

from hookcli.table import Report, Row

COUNTS_BYTES = hasattr(dist.ProcessGroup, "register_pre_hook")
"""Whether this torch tells of the bytes that collectives send; 2.14 does."""

ELEMENTS = sum(p.numel() for p in comm_jobs.model().parameters())


@cache
def ran(*hooks: str, size: int = 2, **plan: Any) -> tuple[list[Report], list[dict[str, Tensor]]]:
    """The report and the local gradients of each rank."""
    found = run_ranks(size, comm_jobs.run_and_gradients, list(hooks), **plan)
    reports, gradients = zip(*found, strict=True)
    return list(reports), list(gradients)


def last(report: Report, hook: str) -> list[Row]:
    rows = [row for row in report.rows if row["hook"] == hook]
    return [row for row in rows if row["step"] == rows[-1]["step"]]
