"""A training that waits for its data: each sample takes 10 ms to decode. python slow_data.py [WORKERS]"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Decoded(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.01)  # reads and decodes a file
        return torch.randn(8, generator=torch.Generator().manual_seed(item)), item % 2


def main(workers: str = "0") -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for x, y in DataLoader(Decoded(), batch_size=4, shuffle=True, num_workers=int(workers)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
