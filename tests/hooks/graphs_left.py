"""Models that leave graphs behind."""

from __future__ import annotations

import torch

X = torch.tensor([[1.0, 2.0], [-1.0, 0.25]])
