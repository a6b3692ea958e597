"""A step computed by hand."""

from __future__ import annotations

import torch
from torch import nn


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
