"""A training script whose loss becomes NaN: it takes the logarithm of a probability that has become 0."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LogProbabilities(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(torch.softmax(x, 1))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 10))
        self.log = LogProbabilities()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.log(self.net(x))
        return out


def main() -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    for step in range(6):
        x = torch.randn(64, 8)
        target = nn.functional.one_hot(x.argmax(1), 10)
        loss = -(target * model(x)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
