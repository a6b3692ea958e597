"""Models of `graph` and `trace`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support import hooks_on
from torch import nn

Cli = Callable[..., Any]


NET = ("net.py:Net", "--input", "2x3x4x4")


OWN = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

class Frozen(Plain):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

class Frees(Plain):
    def forward(self, x):
        y = super().forward(x)
        y.sum().backward()
        return y

class HookFails(Plain):
    def __init__(self, when="forward"):
        super().__init__()
        def fail(*seen):
            raise ValueError("a hook of theirs")
        if when == "forward":
            self.second.register_forward_hook(fail)
        else:
            self.first.weight.register_hook(fail)

class Encoder(nn.TransformerEncoder):
    def __init__(self):
        super().__init__(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False)

class Outputs(Plain):
    def forward(self, x):
        y = super().forward(x)
        return {"out": y, "aux": y * 2}

criterion = nn.MSELoss()

def mse(output):
    return criterion(output, torch.zeros_like(output))
"""


def read(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    report: dict[str, Any] = json.loads(ran.out)["reports"][0]
    return report


def global_hooks() -> dict[str, int]:
    return {name: count for name, count in hooks_on(nn.Module()).items() if name.startswith("_global_")}
