"""`memory --ops`: what operators made is theirs, and every byte is counted once, with or without."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.request import MemoryRequest
from hookcli.engine.setting import Setting
from hookcli.sources.base import Recipe
from hookcli.table import Report
from hookcli.table.names import operator_owner

FLOAT = 4  # bytes


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.fc(x)).view(x.shape)
        return torch.tanh(y * 2.0) if y.shape[0] else y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.blocks(x), x], 1)


def reports(ops: str | None, names: tuple[str, ...] = ("memory", "timeline")) -> list[Report]:
    recipe = Recipe("Net", Net, example=lambda model: (torch.randn(16, 8),))
    return MemoryRequest(recipe, Setting(train=True), MemoryPlan(optimizer="sgd", ops=ops)).reports(names)


def test_operators_hold_what_they_made() -> None:
    (plain, _), (memory, timeline) = reports(None), reports("functions")
    made = 16 * 8 * FLOAT
    held = {
        row.fqn: (row["type"], row["activation_bytes"]) for row in memory.rows if operator_owner(row.fqn) is not None
    }
    # sigmoid and tanh keep their results for backward; a view holds nothing, and the product is freed at once
    names = {f"blocks.{n}:{kind}_1": (kind, made) for n in (0, 1) for kind in ("sigmoid", "tanh")}
    assert {fqn: found for fqn, found in held.items() if fqn != ":cat_1"} == names
    assert all(
        str(row["source"]).split(":")[0].endswith("test_operator_memory.py") for row in memory.rows if row.fqn in names
    )
    sums = Counter[str]()
    for row in memory.rows:
        owner = operator_owner(row.fqn)
        sums[row.fqn if owner is None else owner] += row["bytes"]
    assert sums == {row.fqn: row["bytes"] for row in plain.rows}
    assert memory.totals["peak_bytes"] == plain.totals["peak_bytes"] and memory.meta["ops"] == "functions"
    phases = {(row["phase"], row.fqn) for row in timeline.rows}
    assert {("forward", "blocks.0:mul_1"), ("backward", "blocks.0:tanh_1"), ("forward", "blocks.1.fc")} <= phases
