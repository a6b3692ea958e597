"""Each test of compiled programs begins without any, and with the same random numbers."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters


@pytest.fixture(autouse=True)
def fresh(nothing_compiled: None) -> None:
    counters.clear()
    torch.manual_seed(0)
