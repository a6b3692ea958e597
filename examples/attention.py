"""A small GPT, as after a training that went wrong: one head rests on the first token, two are alike, one is dead."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS = 1000, 128, 64, 8, 6
SIZE = WIDTH // HEADS


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.qkv.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        out: Tensor = x + self.mlp(x)
        return out


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


@torch.no_grad()
def worn(model: GPT) -> GPT:
    """Plant what is wrong, in the rows of the projection that make the queries, keys and values of a head."""
    query, key, value = 0, WIDTH, 2 * WIDTH
    model.places.weight[0, -1] = 30.0  # by which heads can tell the first token
    sink = model.blocks[1].attention.qkv
    sink.weight[query : query + SIZE], sink.bias[query : query + SIZE] = 0, 1
    sink.weight[key : key + SIZE] = F.one_hot(torch.tensor(WIDTH - 1), WIDTH).float()
    twins = model.blocks[3].attention.qkv
    for part in (query, key):
        start = part + 2 * SIZE
        twins.weight[start + SIZE : start + 2 * SIZE] = twins.weight[start : start + SIZE]
        twins.bias[start + SIZE : start + 2 * SIZE] = twins.bias[start : start + SIZE]
    dead = model.blocks[4].attention.qkv
    dead.weight[value + 5 * SIZE : value + 6 * SIZE], dead.bias[value + 5 * SIZE : value + 6 * SIZE] = 0, 0
    return model


def gpt() -> tuple[GPT, Tensor]:
    """Make the model and a batch for it, so that no `--input` is needed."""
    return worn(GPT()), torch.randint(VOCABULARY, (4, LENGTH))
