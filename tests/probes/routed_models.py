"""Mixtures of experts in the spellings that exist: each with weights of its own, the classes of nobody's library."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

WIDTH, NUMBER = 8, 6


class Listed(nn.Module):
    """A list of modules, each of which receives its tokens; the choice is made in the layer itself."""

    def __init__(self, k: int = 2, number: int = NUMBER) -> None:
        super().__init__()
        self.gate, self.k = nn.Linear(WIDTH, number), k
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        values, chosen = self.gate(flat).topk(self.k, dim=-1)
        weights, out = values.softmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if len(token):
                out = out.index_add(0, token, expert(flat[token]) * weights[token, place, None])
        return out.view_as(x)


class Dense(Listed):
    """Every expert computes every token, and a mask keeps what was chosen."""

    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.gate(x), -1)
        values, chosen = torch.topk(p, k=self.k, dim=-1)
        mask = torch.zeros_like(p).scatter(-1, chosen, values)
        return sum(mask[..., n : n + 1] * expert(x) for n, expert in enumerate(self.experts))  # type: ignore[return-value]


class CapacityRouter(nn.Module):
    """Routes the first tokens that come, and drops those for which an expert has no place left."""

    def __init__(self, k: int, capacity: int) -> None:
        super().__init__()
        self.w_g, self.k, self.capacity = nn.Linear(WIDTH, NUMBER, bias=False), k, capacity

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = x.shape[0] * x.shape[1]
        logits = self.w_g(x)
        values, chosen = logits.topk(self.k, dim=-1)
        p = F.softmax(torch.full_like(logits, float("-inf")).scatter_(-1, chosen, values), dim=-1)
        mask = F.one_hot(chosen, NUMBER).view(tokens, self.k, NUMBER).permute(1, 0, 2)
        rank = (mask.reshape(-1, NUMBER).cumsum(0) - 1).view(self.k, tokens, NUMBER)
        mask = mask * (rank < self.capacity)
        places = F.one_hot((mask * rank).sum(-1), self.capacity)
        weights = ((mask * p.view(1, tokens, NUMBER)).unsqueeze(3) * places.unsqueeze(2)).sum(0)
        return mask.sum((0, 1)), weights, weights.bool()


class Weights(nn.Module):
    """Experts as one weight of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Parameter(torch.randn(NUMBER, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.fc


class Capacity(nn.Module):
    """A router with a capacity beside experts that receive batches of so many places."""

    def __init__(self, k: int = 2, capacity: int = 4) -> None:
        super().__init__()
        self.router, self.experts = CapacityRouter(k, capacity), Weights()

    def forward(self, x: Tensor) -> Tensor:
        _, weights, mask = self.router(x)
        flat = x.flatten(0, 1)
        batches = torch.einsum("tec,td->ecd", mask.to(x.dtype), flat)
        return torch.einsum("tec,ecd->td", weights, self.experts(batches)).view_as(x)


class Inline(nn.Module):
    """The layer itself holds the weights; `argmax` chooses one expert."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.w = nn.Linear(WIDTH, NUMBER), nn.Parameter(torch.randn(NUMBER, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        p = self.gate(x).softmax(-1)
        return (x.unsqueeze(-2) @ self.w[p.argmax(-1)]).squeeze(-2) * p.max(-1).values.unsqueeze(-1)


class Unrouted(nn.Module):
    """A choice among as many as there are layers, as a loss makes it after them, and one among a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUMBER))
        self.head = nn.Linear(WIDTH, 50)
        self.score = nn.Linear(WIDTH, NUMBER)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        self.score(x).softmax(-1).topk(2)
        return self.head(x).topk(5).values
