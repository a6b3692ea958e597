"""Models with attention, explicit computations of their weights in float64, and the figures of these."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

HEADS, SIZE = 4, 8


class Attention(nn.Module):
    """Causal attention, by PyTorch's kernel or by hand."""

    def __init__(self, kernel: str = "fused") -> None:
        super().__init__()
        self.kernel, self.qkv = kernel, nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE)
        self.attend, self.out = nn.Softmax(-1), nn.Linear(HEADS * SIZE, HEADS * SIZE)

    def split(self, x: Tensor) -> list[Tensor]:
        return [t.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]

    def scores(self, x: Tensor) -> Tensor:
        q, k, _ = self.split(x)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return (q @ k.transpose(-2, -1) / math.sqrt(SIZE)).masked_fill(hidden, -math.inf)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        if self.kernel == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.kernel == "einsum":
            y = torch.einsum("bhqk,bhkd->bqhd", self.scores(x).softmax(dim=-1), v).transpose(1, 2)
        else:
            y = F.dropout(self.attend(self.scores(x)), 0.5, self.training) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    """Two blocks; the logits of its vocabulary go through a softmax that is not attention's."""

    def __init__(self, kernel: str = "fused") -> None:
        super().__init__()
        torch.manual_seed(0)
        width = HEADS * SIZE
        self.embed, self.head = nn.Embedding(50, width), nn.Linear(width, 50)
        self.blocks = nn.ModuleList(Attention(kernel) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        probabilities: Tensor = self.head(x).softmax(-1)
        return probabilities @ self.embed.weight


TOKENS = torch.arange(2 * 40).view(2, 40) * 7 % 50


def plant(model: GPT) -> None:
    """In block 1: head 0 looks at the first token alone, head 2 has the weights of head 1, head 3 returns nothing."""
    weight, bias = model.blocks[1].qkv.weight, model.blocks[1].qkv.bias
    width = HEADS * SIZE
    with torch.no_grad():
        weight[: 2 * width] *= 3
        for start in (0, width):
            weight[start + 2 * SIZE : start + 3 * SIZE] = weight[start + SIZE : start + 2 * SIZE]
            bias[start + 2 * SIZE : start + 3 * SIZE] = bias[start + SIZE : start + 2 * SIZE]
        weight[2 * width + 3 * SIZE :], bias[2 * width + 3 * SIZE :] = 0, 0


def figures(logits: Tensor, sees: Tensor, values: Tensor) -> list[dict[str, float]]:
    """The figures of each head, straight from their definitions, of logits (batch, heads, queries, keys) in float64.

    `sees`: which keys each query may see. `values`: (batch, heads, keys, size).
    """
    logits, sees = logits.detach().double(), sees.expand(logits.shape)
    weights = logits.masked_fill(~sees, -math.inf).softmax(-1)
    keys = sees.sum(-1)
    found = []
    outputs = [
        float((weights[:, h] @ values.detach().double()[:, h]).square().mean().sqrt()) for h in range(logits.shape[1])
    ]
    even = weights.new_zeros(weights.shape).masked_fill(sees, 1) / keys.clamp(min=1)[..., None]
    for h in range(logits.shape[1]):
        rows = [(b, i) for b in range(len(logits)) for i in range(logits.shape[2]) if keys[b, h, i] >= 2]
        w = torch.stack([weights[b, h, i] for b, i in rows])
        at = torch.tensor([i for _, i in rows])
        entropy = torch.special.entr(w).sum(-1)
        chosen = torch.stack([logits[b, h, i].masked_fill(~sees[b, h, i], -math.inf) for b, i in rows])
        mine = torch.stack([(weights - even)[b, :, i] for b, i in rows], 1).flatten(1)
        cosines = F.cosine_similarity(mine[h : h + 1], mine)
        cosines[h] = -2
        of: dict[str, Any] = {
            "queries": len(rows),
            "entropy": entropy.mean(),
            "entropy_share": (entropy / torch.tensor([float(keys[b, h, i]) for b, i in rows]).log()).mean(),
            "max_logit": chosen.max(),
            "max_weight": w.max(),
            "first_share": w[:, 0].mean(),
            "top_key": w.mean(0).argmax(),
            "top_key_share": w.mean(0).max(),
            "self_share": w.gather(1, at[:, None].clamp(max=w.shape[1] - 1)).mean(),
            "distance": (w * (torch.arange(w.shape[1]) - at[:, None]).abs()).sum(-1).mean(),
            "output_rms": outputs[h],
            "output_share": outputs[h] / (sum(outputs) / len(outputs)),
            "similarity": cosines.max(),
            "nearest": int(cosines.argmax()),
        }
        found.append({name: float(value) for name, value in of.items()})
    return found
