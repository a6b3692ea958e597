"""A mixture of experts, as after a bad balance update: the biases of two experts keep every token away."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, EXPERTS, K, BLOCKS = 1000, 32, 8, 2, 4


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        hidden = torch.einsum("td,tkdh->tkh", x, self.up[chosen]).relu()
        return torch.einsum("tkh,tkhd,tk->td", hidden, self.down[chosen], weights)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.experts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS), Experts()

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).flatten(0, 1)
        weights, chosen = self.gate(flat).softmax(-1).topk(K, dim=-1)
        out: Tensor = x + self.experts(flat, chosen, weights).view_as(x)
        return out


class MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        with torch.no_grad():
            self.blocks[2].gate.bias[[3, 6]] = -12

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def moe() -> tuple[MoE, Tensor]:
    """Make the model and a batch for it, so that no `--input` is needed."""
    return MoE(), torch.randint(VOCABULARY, (8, 64))
