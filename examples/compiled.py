"""A model with lines that torch.compile can't trace."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.largest = 0.0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        if h.isnan().any():
            raise ValueError("NaN in the stem")
        self.largest = h.max().item()
        return self.head(torch.relu(self.body(h)))
