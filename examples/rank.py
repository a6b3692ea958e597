"""An encoder that loses its tokens: one block has forgotten its shortcut, and its attention looks at all alike."""

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * self.scale
        return scores.softmax(-1) @ self.value(x)


class Block(nn.Module):
    def __init__(self, width: int, *, broken: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, scale=1 / width**2 if broken else width**-0.5)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention(self.norm(x))
        x = mixed if self.broken else x + mixed
        return x + self.mlp(x)


class Encoder(nn.Module):
    """Four blocks, of which the third is broken, on 64 tokens of a vocabulary of 100."""

    def __init__(self, broken: int = 2, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(100, width), nn.Parameter(torch.randn(64, width))
        self.blocks = nn.Sequential(*(Block(width, broken=number == broken) for number in range(4)))
        self.head = nn.Linear(width, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens) + self.position))


def train(steps: int = 30) -> None:
    """Learn to copy the tokens, which needs each of them."""
    torch.manual_seed(0)
    model = Encoder(broken=-1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        tokens = torch.randint(100, (4, 64))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
