"""A training of 20 steps that saves its model, and one that goes on from there: python resume.py [on]"""

from __future__ import annotations

import sys

import torch
from torch import nn


def main(how: str = "") -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if how == "on":
        model.load_state_dict(torch.load("resume.pt"))
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randn(32, 8, generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
    torch.save(model.state_dict(), "resume.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
