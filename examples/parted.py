"""A training of 12 steps, which computes one thing otherwise in its step 6: python parted.py [other]"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 4)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.body(x)) * self.scale
        scores: Tensor = self.head(hidden)
        return scores


def main(how: str = "") -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for step in range(12):
        model.scale = 1.0001 if how and step == 6 else 1.0
        x = torch.randn(32, 8, generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
