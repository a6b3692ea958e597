"""Reports of graphs and traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Cli = Callable[..., Any]


X = torch.tensor([[1.0, 2.0]])
