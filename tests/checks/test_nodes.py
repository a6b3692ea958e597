"""HK020 tells graph networks, whose nodes are in dimension 0, from mistakes that mix the items of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import untouched
from torch import Tensor, nn

from hookcli import check

N = 6  # nodes, or items
_RING = torch.arange(N)
_ADJACENT = torch.eye(N) + torch.eye(N).roll(1, 0)
_ENDS = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 4]])


class Net(nn.Module):
    def __init__(self, mix: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.mix = nn.Linear(N, N), nn.Linear(N, 2), mix
        self.weight = nn.Parameter(torch.eye(N) + 0.1)

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return self.last(self.mix(self, self.first(x), *more))


def messages(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return h.index_add(0, target, h[source].tanh())


GRAPHS: dict[str, Any] = {
    "a constant matrix": lambda _, h: _ADJACENT @ h,
    "a normalised matrix": lambda _, h: torch.einsum("ij,jk->ik", _ADJACENT / _ADJACENT.sum(1), h),
    "a sparse matrix": lambda _, h: torch.sparse.mm(_ADJACENT.to_sparse(), h),
    "messages": lambda _, h: messages(h, *_ENDS),
    "as many edges as nodes": lambda _, h: messages(h, _RING, _RING.roll(1)),
    "scattered": lambda _, h: h.scatter_add(0, _ENDS[1][:, None].expand(-1, N), h[_ENDS[0]]),
}
MISTAKES: dict[str, Any] = {
    "softmax over the batch": lambda _, h: h.softmax(0),
    "statistics of the batch": lambda _, h: (h - h.mean(0)) / h.std(0),
    "norm over the batch": lambda _, h: h / h.norm(dim=0),
    "a weight on the wrong side": lambda net, h: net.weight @ h,
    "a transposed weight on the wrong side": lambda net, h: net.weight.T @ h,
    "an order that is mixed up": lambda _, h: h[_RING.roll(1)],
    "a view of the transposed": lambda _, h: h.T.reshape(N, N),
    "softmax, then messages": lambda _, h: messages(h.softmax(0), *_ENDS),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_mixing_nodes_is_a_warning(case: str) -> None:
    torch.manual_seed(0)
    model, x = Net(GRAPHS[case]), torch.randn(N, N)
    with untouched(model):
        report = check(model, x, select="HK020")
    [finding] = report.findings
    assert finding.severity == "warning"
    assert finding.message.endswith(") mixes them, which is right if they are the nodes of a graph")
    assert "tests/checks/test_nodes.py:" in finding.message


@pytest.mark.parametrize("case", MISTAKES)
def test_mixing_a_batch_is_an_error(case: str) -> None:
    torch.manual_seed(0)
    [finding] = check(Net(MISTAKES[case]), torch.randn(N, N), select="HK020").findings
    assert finding.severity == "error" and "nodes of a graph" not in finding.message


def test_a_matrix_that_the_model_is_given() -> None:
    torch.manual_seed(0)
    [finding] = check(Net(lambda _, h, a: a @ h), torch.randn(N, N), _ADJACENT, select="HK020").findings
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "norm", [lambda h: h - h.mean(0), lambda h: h / h.norm(dim=0), lambda h: (h - h.mean(0)) / h.std()]
)
def test_statistics_of_the_nodes_are_as_right_as_their_messages(norm: Callable[[Tensor], Tensor]) -> None:
    """As in PairNorm and GraphNorm."""
    torch.manual_seed(0)
    [finding] = check(Net(lambda _, h: messages(norm(h), *_ENDS)), torch.randn(N, N), select="HK020").findings
    assert finding.severity == "warning" and finding.message.endswith("right if they are the nodes of a graph")
