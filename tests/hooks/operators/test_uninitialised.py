"""Rows of uninitialised memory are left out. PyTorch fills such memory with NaN for the oracle: no row may have one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from hookcli import capture, check
from hookcli.engine.lockstep import Side, compare
from hookcli.table import Report


class Buffers(nn.Module):
    """Each statement ends with the operators that return memory which is not all written then."""

    def forward(self, x: Tensor) -> Tensor:
        n, rows = x.shape
        torch.empty(n, 2).t()  # empty_1 t_1
        a = torch.empty_like(x)  # empty_like_1
        a.copy_(x)
        b = x.new_empty(2 * n, rows)  # new_empty_1
        b[:n] = x  # setitem_1
        b[:n].mul(2)
        b[n:] = x
        c = torch.empty_strided((n, rows), (1, n)).clone()  # empty_strided_1 clone_1
        c[x > 0] = 1.0  # setitem_3
        c[x <= 0] = 0.0
        d = torch.empty_permuted((n, rows), (1, 0))  # empty_permuted_1
        d.index_fill_(0, torch.arange(1, n), 1.0)  # index_fill__1
        d.index_copy_(0, torch.tensor([0]), x[:1])
        e = torch.empty(n, dtype=torch.float32)  # empty_2
        e.scatter_(0, torch.arange(n).flip(0), x[:, 0])
        f = torch.empty(n, rows).to(torch.float64)  # empty_3 to_1
        f.masked_fill_(x > 0, 1.0)  # masked_fill__1
        f.masked_scatter_(x <= 0, f.new_zeros(n * rows))
        g = x.new_empty_strided((n, rows), (rows, 1)).reshape(rows, n)  # new_empty_strided_1 reshape_1
        torch.mul(x.t(), 2, out=g)
        h = x.new(n, rows).view(-1)  # new_1 view_1
        h.normal_()
        i = torch.zeros(1).resize_(n)  # resize__1
        i.index_put_((torch.arange(n),), e)
        torch.empty(0).sum()
        return x + a + b[n:] + c + d + f.float() + g.t() + h.view(n, rows) + i[:, None]


UNWRITTEN = """
empty_1 t_1 empty_like_1 new_empty_1 setitem_1 empty_strided_1 clone_1 setitem_3 empty_permuted_1 index_fill__1 empty_2
empty_3 to_1 masked_fill__1 new_empty_strided_1 reshape_1 new_1 view_1 resize__1
"""
EXPECTED = {f":{name}" for name in UNWRITTEN.split()}


@pytest.fixture
def filled() -> Iterator[None]:
    """PyTorch fills uninitialised memory with NaN, but for that of `Tensor.new`."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def left_out(report: Report) -> set[str]:
    return {item.fqn for item in report.skipped if item.reason.startswith("uninitialised memory: ")}


@pytest.mark.parametrize("ops", ["functions", "aten"])
def test_no_row_shows_what_was_never_written(filled: None, ops: str) -> None:
    x = torch.randn(4, 3)
    report = capture(Buffers(), x, "activations", ops=ops)[0]
    assert not [row.fqn for row in report.rows if row["nan"]]
    assert left_out(report) if ops == "aten" else left_out(report) == EXPECTED
    assert {":copy__1", ":setitem_4", ":scatter__1", ":normal__1", ":index_put__1", ":empty_4"} <= {
        row.fqn for row in report.rows
    } or ops == "aten"


def test_a_model_equals_itself_and_has_no_fault(filled: None) -> None:
    x = torch.randn(4, 3)
    report = compare(Side(Buffers(), x), Side(Buffers(), x), ops="functions")
    assert report.totals["verdict"] == "Identical, bit for bit"
    assert left_out(report) == EXPECTED
    found = check(Buffers(), x, ops="functions", backward=False).findings
    assert not [finding for finding in found if "NaN" in finding.message], found


def test_what_is_computed_from_uninitialised_memory_is_a_fault(filled: None) -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.empty_like(x) * 2

    rows = capture(Reads(), torch.randn(4, 3), "activations", ops="functions")[0].rows
    assert [row.fqn for row in rows if row["nan"]] == ["", ":mul_1", ":add_1"]
