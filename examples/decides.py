"""A small language model in which one module decides a logit: which one?"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Self-attention and an MLP, each added to a stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Six blocks; what `layers.3.mlp` adds to dimension 0 of the stream is large, and `logits[..., 42]` reads it."""

    def __init__(self, width: int = 32, heads: int = 4, tokens: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens, bias=False)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(6))
        with torch.no_grad():
            self.embed.weight[:, 0] = 0
            self.layers[3].mlp[2].bias[0] = 3
            self.head.weight[42] = torch.eye(width)[0]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def example() -> tuple[nn.Module, tuple[Tensor]]:
    return Model(), (torch.arange(16)[None],)
