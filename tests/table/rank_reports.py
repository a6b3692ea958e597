"""Reports of ranks, made of tensors."""

from __future__ import annotations

import torch

from hookcli.table import STATS_COLUMNS, Column, Report, Row
from hookcli.tensors.stats import stats

COLUMNS = (Column("fqn", "Layer"), Column("path", "Path"), Column("shape", "Shape"), *STATS_COLUMNS)


def row(fqn: str, tensor: torch.Tensor, **values) -> Row:
    return Row({"fqn": fqn, "path": "", "shape": list(tensor.shape)} | values, stats(tensor))


def report(*rows: Row, **settings_) -> Report:
    return Report(
        "activations", "net", COLUMNS, rows, settings_.pop("meta", {"seconds": 1.0}), {"rows": len(rows)}, **settings_
    )


def parts_of(*tensors: torch.Tensor, **values) -> dict[int, Report]:
    return {rank: report(row("a", tensor, **values)) for rank, tensor in enumerate(tensors)}
