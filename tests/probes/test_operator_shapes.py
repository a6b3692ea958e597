"""`shapes --ops`: operators have rows with shapes, MACs, memory and the bytes that they move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import untouched
from torch import Tensor, nn
from torch.nn import functional

from hookcli import capture
from hookcli.table import Report

FLOAT = 4  # bytes


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.act(self.drop(self.fc(x)))) + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Part()
        self.weight = nn.Parameter(torch.randn(6, 8))
        self.table = nn.Parameter(torch.randn(100, 8))

    def forward(self, x: Tensor, *, index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.part(x)
        y = torch.matmul(x, self.weight.t())
        y[:, 2:] = 0.0
        y.clamp_(max=1.0)
        first, _ = torch.cat([y, y]).chunk(2)
        return first.expand(5, 2, 6).sum(0), functional.embedding(index, self.table) + torch.zeros_like(x)


@pytest.fixture(scope="module")
def report() -> Report:
    net, inputs = Net().eval(), {"x": torch.randn(2, 8), "index": torch.tensor([3, 5])}
    with untouched(net):
        plain, found = (capture(net, inputs, ["shapes"], ops=ops)[0] for ops in (None, "functions"))
    assert found.totals == plain.totals and found.skipped == plain.skipped
    modules = [row for row in found.rows if ":" not in row.fqn]
    added = ("index", "read_bytes", "written_bytes")
    assert [{**row.values, "index": 0} for row in plain.rows] == [
        {key: value for key, value in row.values.items() if key not in added} | {"index": 0} for row in modules
    ]
    return found


def test_each_operator_has_its_shapes_and_costs(report: Report) -> None:
    rows = {row.fqn: row for row in report.rows if row["macs"] is not None}
    operators = [row.fqn for row in report.rows if ":" in row.fqn]
    assert operators == [
        *(
            "part:relu_1",
            "part:add_1",
            ":t_1",
            ":matmul_1",
            ":setitem_1",
            ":clamp__1",
            ":cat_1",
            ":chunk_1",
            ":chunk_1",
        ),
        *(":expand_1", ":sum_1", ":embedding_1", ":zeros_like_1", ":add_1"),
    ]
    matmul = rows[":matmul_1"]
    assert (matmul["type"], matmul["macs"], matmul["depth"]) == ("matmul", 2 * 8 * 6, 1)
    assert (matmul["input_shape"], matmul["output_shape"], matmul["params"]) == ([[2, 8], [8, 6]], [2, 6], None)
    assert rows["part.fc"]["macs"] + matmul["macs"] == report.totals["macs"] == rows[""]["macs"]
    assert rows["part:relu_1"]["kept"] == 2 * 8 * FLOAT and rows["part:add_1"]["kept"] == 0  # a ReLU keeps its result
    assert str(matmul["source"]).partition(":")[0].endswith("test_operator_shapes.py")
    assert [column.name for column in report.columns if column.name in ("source", "read_bytes", "written_bytes")] == [
        *("source", "read_bytes", "written_bytes")
    ]


def test_the_bytes_that_operators_move(report: Report) -> None:
    moved = {row.fqn: (row["read_bytes"], row["written_bytes"]) for row in report.rows if row["read_bytes"] is not None}

    def elements(fqn: str) -> tuple[Any, ...]:
        return tuple(size / FLOAT for size in moved[fqn])

    assert elements("part:relu_1") == (16, 16) and elements("part:add_1") == (32, 16)
    assert elements(":matmul_1") == (16 + 48, 12) and elements(":clamp__1") == (12, 12)
    assert elements(":setitem_1") == (0, 8)  # the part that is assigned
    assert elements(":cat_1") == (12, 24)  # one tensor, given twice, is read once
    assert all(elements(fqn) == (0, 0) for fqn in (":t_1", ":chunk_1", ":expand_1", "part.drop"))  # they move nothing
    assert elements(":sum_1") == (12, 12)  # what expand repeats is read once
    assert moved[":embedding_1"] == (16 * FLOAT + 2 * 8, 16 * FLOAT) and elements(":zeros_like_1") == (0, 16)
    assert elements("part.fc") == (16 + 64 + 8, 16) and elements("part.act") == (16, 16)  # in place, but it writes
    assert elements("part") == (88 + 16 + 16 + 32, 16 + 16 + 16 + 16)
    parts = [sizes for fqn, sizes in moved.items() if fqn not in ("", "part")]
    assert moved[""] == tuple(sum(each) for each in zip(*parts, strict=True))


def test_operators_of_aten() -> None:
    (report,) = capture(nn.Linear(4, 3), torch.randn(2, 4), ["shapes"], ops="aten")
    (addmm,) = (row for row in report.rows if row["type"] == "addmm")
    assert (addmm["macs"], addmm["kept"], addmm["output_shape"]) == (2 * 4 * 3, None, [2, 3])
    assert (addmm["read_bytes"], addmm["written_bytes"]) == ((8 + 12 + 3) * FLOAT, 6 * FLOAT)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.act = nn.MultiheadAttention(8, 2, batch_first=True), Square()

    def forward(self, x: Tensor) -> Any:
        return self.act(self.attention(x, x, x)[0]) + x


class Square(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * torch.relu(x)


def test_the_flow_names_operators_as_the_rows_do() -> None:
    model = Attention()
    with untouched(model):
        shapes, flow = capture(model, torch.ones(1, 3, 8), ["shapes", "flow"], ops="functions")
    operators = {row.fqn for row in shapes.rows if ":" in row.fqn}
    functions = {f"{row.fqn}:{row['type']}_{row['number']}" for row in flow.rows if row["kind"] == "function"}
    assert {"act:relu_1", "act:mul_1", ":add_1"} == functions < operators  # attention is one box
    assert "attention:softmax_1" in operators
    (plain,) = capture(model, torch.ones(1, 3, 8), ["flow"])
    assert [row.fqn for row in plain.rows if row["kind"] == "module"] == ["attention", "act"]
