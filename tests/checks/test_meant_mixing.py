"""HK020 tells models whose items are meant to see each other from mistakes that mix the items of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support import swept, untouched
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli import check

N, D = 6, 8  # items and features


class Net(nn.Module):
    """Layers around a function of them and their output."""

    def __init__(self, mix: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.q, self.k, self.v, self.last = (nn.Linear(D, D) for _ in range(5))
        self.across, self.conv = nn.Linear(N, N), nn.Conv1d(D, D, 3, padding=1)
        self.wide, self.hyper, self.both = nn.Linear(D, 3), nn.Linear(D, D * D), nn.Linear(2 * D, D)
        self.pooled = nn.Linear(D + 1, D)
        self.prototypes, self.apart = nn.Parameter(torch.randn(5, D)), nn.Parameter(torch.randn(D, 3 * 2))
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.recurrent = nn.GRU(D, D, batch_first=True, bidirectional=True)
        self.softmax = nn.Softmax(0)
        self.mix = mix

    def forward(self, x: Tensor) -> Any:
        return self.mix(self, self.first(x))


def sinkhorn(scores: Tensor) -> Tensor:
    q = torch.exp(scores).t()
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(dim=1, keepdim=True)
        q = q / q.sum(dim=0, keepdim=True)
    return q.t()


def log_sinkhorn(scores: Tensor) -> Tensor:
    for _ in range(3):
        scores = scores - scores.logsumexp(0, keepdim=True)
        scores = scores - scores.logsumexp(1, keepdim=True)
    return scores.exp()


def balanced(scores: Tensor) -> Tensor:
    for _ in range(3):
        scores = 20 * scores.softmax(0).softmax(-1)
    return scores


def transport(scores: Tensor) -> Tensor:
    kernel, right = scores.exp(), torch.ones(5)
    for _ in range(3):
        left = 1 / (kernel @ right)
        right = 1 / (kernel.T @ left)
    return left[:, None] * kernel * right


def attended(net: Net, h: Tensor) -> Tensor:
    return h + (net.q(h) @ net.k(h).T).softmax(-1) @ net.v(h)


def inducing(net: Net, h: Tensor) -> Tensor:
    memory = (net.prototypes @ net.k(h).T).softmax(-1) @ net.v(h)
    return h + (net.q(h) @ memory.T).softmax(-1) @ memory


def heads(net: Net, h: Tensor) -> Tensor:
    q, k, v = (layer(h).view(N, 2, D // 2).transpose(0, 1) for layer in (net.q, net.k, net.v))
    return net.last(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(N, D))


def neighbours(net: Net, h: Tensor) -> Tensor:
    nearest = torch.cdist(h, h).topk(3, largest=False)[1]
    return net.both(torch.cat([h, h[nearest].mean(1)], 1))


def edges(net: Net, h: Tensor) -> Tensor:
    pairs = torch.cat([h.unsqueeze(0).expand(N, N, D), h.unsqueeze(1).expand(N, N, D)], -1)
    return net.both(pairs).relu().amax(1)


def discriminated(net: Net, h: Tensor) -> Tensor:
    m = (h @ net.apart).view(N, 3, 2)
    near = (-(m.unsqueeze(0) - m.unsqueeze(1)).abs().sum(-1)).exp().sum(1)
    return torch.cat([h, near], 1)


def deviation(net: Net, h: Tensor, groups: int) -> Tensor:
    y = h.view(groups, N // groups, D)
    y = (y - y.mean(0, keepdim=True)).square().mean(0).add(1e-8).sqrt().mean(1, keepdim=True)
    return net.pooled(torch.cat([h, y.repeat(groups, 1)], 1))


def ghost(net: Net, h: Tensor) -> Tensor:
    return net.last(torch.cat([(part - part.mean(0)) / (part.std(0) + 1e-3) for part in h.chunk(2)]))


def grouped(net: Net, h: Tensor) -> Tensor:
    y = h.view(2, N // 2, D)
    return net.last(((y - y.mean(1, keepdim=True)) / (y.std(1, keepdim=True) + 1e-3)).view(N, D))


def equivariant(layer: nn.Module, h: Tensor) -> Tensor:
    """The layer of Deep Sets that subtracts the largest."""
    return layer(h - h.max(0, keepdim=True)[0])


def modulated(net: Net, h: Tensor) -> Tensor:
    return h * torch.sigmoid(net.last(net.first(h).mean(0, keepdim=True).relu()))


MEANT: dict[str, Callable[[Net, Tensor], Any]] = {
    "assignment by Sinkhorn": lambda net, h: sinkhorn(h @ net.prototypes.T),
    "Sinkhorn on logarithms": lambda net, h: log_sinkhorn(h @ net.prototypes.T),
    "softmax over rows and columns in turn": lambda net, h: balanced(h @ net.prototypes.T),
    "optimal transport": lambda net, h: transport(h @ net.prototypes.T),
    "weights made from the mean": lambda net, h: F.linear(h, net.hyper(h.mean(0)).view(D, D)),
    "weights made from the mean, on the right": lambda net, h: h @ net.hyper(h.mean(0, keepdim=True)).view(D, D),
    "a bias made from the sum": lambda net, h: net.q(h) - net.k(h.amax(0, keepdim=True)),
    "modulated by the set": modulated,
    "an equivariant layer": lambda net, h: net.last(h - h.mean(0)),
    "an equivariant layer in the residual": lambda net, h: h + net.last(h - h.mean(0, keepdim=True)),
    "equivariant layers": lambda net, h: equivariant(net.last, equivariant(net.q, h).tanh()),
    "a layer of the item and the sum": lambda net, h: net.last((h + 0.1 * h.sum(0)).relu()),
    "similarities": lambda net, h: F.normalize(h, dim=1) @ F.normalize(net.q(h), dim=1).T,
    "distances": lambda net, h: torch.cdist(h, h),
    "an adjacency matrix of the input": lambda net, h: net.last((h @ h.T / D).softmax(1) @ h),
    "attention over a set": attended,
    "attention with inducing points": inducing,
    "attention with heads": heads,
    "PyTorch's attention over a set": lambda net, h: net.attention(h[None], h[None], h[None])[0][0],
    "nearest neighbours": neighbours,
    "neighbours in a table": lambda net, h: h + h[torch.arange(N)[:, None].add(torch.arange(1, 4)) % N].mean(1),
    "pairs": edges,
    "distances to the means of classes": lambda net, h: torch.cdist(h, torch.stack([h[:3].mean(0), h[3:].mean(0)])),
    "minibatch discrimination": discriminated,
    "deviation in three groups": lambda net, h: deviation(net, h, 3),
    "deviation of the batch": lambda net, h: deviation(net, h, N),
    "the set's mean beside each item": lambda net, h: net.both(torch.cat([h, h.mean(0).expand(N, -1)], 1)),
    "statistics of parts": ghost,
    "statistics of groups": grouped,
    "one sequence": lambda net, h: net.recurrent(h)[0],
    "one sequence in a batch of one": lambda net, h: net.recurrent(h[None])[0][0],
    "one signal": lambda net, h: net.conv(h.T[None])[0].T,
    "attention to a bag": lambda net, h: ((a := net.wide(h).softmax(0)).T @ h, a),
}
ACCUSED: dict[str, Callable[[Net, Tensor], Any]] = {
    "softmax": lambda net, h: net.last(h.softmax(0)),
    "a layer of softmax": lambda net, h: net.last(net.softmax(h)),
    "cumsum": lambda net, h: net.last(h.flip(0).cumsum(0).flip(0)),
    "sort": lambda net, h: net.last(h.sort(0)[0]),
    "flip": lambda net, h: net.last(h.flip(0)),
    "roll": lambda net, h: net.last(h.roll(1, 0)),
    "normalize": lambda net, h: F.normalize(h, dim=0),
    "centred at the end": lambda net, h: net.last(h) - net.last(h).mean(0),
    "centred and in the residual": lambda net, h: (y := h - h.mean(0)) + net.last(y),
    "standardised by hand": lambda net, h: net.last((h - h.mean(0)) * (h.var(0) + 1e-5).rsqrt()),
    "standardised": lambda net, h: net.last((h - h.mean(0)) / (h.std(0) + 1e-5) * net.last.bias),
    "by the largest": lambda net, h: net.last(h / h.std()),
    "batch statistics": lambda net, h: F.batch_norm(h, None, None, training=True),
    "a view of the transposed": lambda net, h: net.last(h.T.reshape(N, D)),
    "a wrong reshape": lambda net, h: net.last(h.reshape(D, N).T),
    "layers over the batch": lambda net, h: net.across(h.T).T,
    "a branch beside a healthy one": lambda net, h: net.both(torch.cat([net.q(h), net.k(h.softmax(0))], 1)),
    "before attention over a set": lambda net, h: attended(net, h - h.mean(0)),
    "the mean instead of the item": lambda net, h: net.v(h).mean(0, keepdim=True).expand(N, -1),
}
LIKE_OTHERS = {
    *("Sinkhorn on logarithms", "softmax over rows and columns in turn", "weights made from the mean, on the right"),
    *("an equivariant layer in the residual", "equivariant layers", "attention with inducing points", "distances"),
    *("attention with heads", "deviation of the batch", "statistics of groups", "one sequence in a batch of one"),
    *("a layer of softmax", "flip", "roll", "centred and in the residual", "standardised", "a wrong reshape"),
}


def of_each_family(cases: Iterable[str]) -> list[Any]:
    return [swept(case) if case in LIKE_OTHERS else case for case in cases]


@pytest.mark.parametrize("case", of_each_family(MEANT))
def test_what_may_be_meant_is_a_warning_that_asks(case: str) -> None:
    model, x = Net(MEANT[case]), torch.randn(N, D)
    with untouched(model):
        report = check(model, x, select="HK020")
    [finding] = report.findings
    assert finding.severity == "warning", finding.message
    assert finding.message.endswith("is it meant?")


@pytest.mark.parametrize("case", of_each_family(ACCUSED))
def test_what_spoils_each_item_is_an_error_that_names_its_operator(case: str) -> None:
    [finding] = check(Net(ACCUSED[case]), torch.randn(N, D), select="HK020").findings
    assert finding.severity == "error", finding.message
    reason = finding.message.partition(" of the largest output); ")[2]
    assert "tests/checks/test_meant_mixing.py:" in reason or reason.startswith(("Linear (", "Softmax ("))


def by_hand(net: Net, h: Tensor) -> Tensor:
    q, k, v = (layer(h).transpose(0, 1) for layer in (net.q, net.k, net.v))
    return ((q @ k.transpose(1, 2)).softmax(-1) @ v).transpose(0, 1)


SWAPPED: dict[str, Callable[[Net, Tensor], Any]] = {
    "attention by hand": by_hand,
    "attention": lambda net, h: net.attention(*[h.transpose(0, 1)] * 3)[0].transpose(0, 1),
    "a recurrent layer": lambda net, h: net.recurrent(h.transpose(0, 1))[0].transpose(0, 1),
    "a convolution": lambda net, h: net.conv(h.permute(1, 2, 0)).permute(2, 0, 1),
}
IN_PLACE: dict[str, Callable[[Net, Tensor], Any]] = {
    "attention by hand": lambda net, h: (net.q(h) @ net.k(h).transpose(1, 2)).softmax(-1) @ net.v(h),
    "attention": lambda net, h: net.attention(h, h, h)[0],
    "a recurrent layer": lambda net, h: net.recurrent(h)[0],
    "a convolution": lambda net, h: net.conv(h.transpose(1, 2)).transpose(1, 2),
}


@pytest.mark.parametrize("case", SWAPPED)
def test_sequences_whose_dimensions_are_swapped_are_an_error(case: str) -> None:
    x = torch.randn(N, 5, D)
    [finding] = check(Net(SWAPPED[case]), x, select="HK020").findings
    assert finding.severity == "error", finding.message
    assert check(Net(IN_PLACE[case]), x, select="HK020").findings == []


def gated(net: Net, h: Tensor, dims: Any) -> Tensor:
    return h * torch.sigmoid(net.last(net.first(h.mean(dims, keepdim=True)).relu()))


SEQUENCES: dict[str, tuple[str, Callable[[Net, Tensor], Any]]] = {
    "a context of the whole batch": ("warning", lambda net, h: gated(net, h, (0, 1))),
    "the mean of the batch": ("error", lambda net, h: net.last(h - h.mean(0))),
    "the mean of all": ("error", lambda net, h: net.last(h - h.mean((0, 1), keepdim=True))),
    "the figure of all": ("error", lambda net, h: net.last(h / h.std())),
    "a context of each item": ("", lambda net, h: gated(net, h, 1)),
    "the mean of each item": ("", lambda net, h: net.last(h - h.mean(1, keepdim=True))),
}


@pytest.mark.parametrize("case", SEQUENCES)
def test_items_of_several_positions_are_no_vectors_of_a_set(case: str) -> None:
    severity, mix = SEQUENCES[case]
    findings = check(Net(mix), torch.randn(N, 5, D), select="HK020").findings
    assert [finding.severity for finding in findings] == [severity] * bool(severity)
