"""A user's own model, and packages read again with `zipfile`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]


MINE = """
import io
import sys
import numpy as np
import torch
from torch import nn
from pk_parts import Act

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(3, width)
        self.act = Act()

    def forward(self, x):
        return self.act(self.fc(x))

def named():
    return Net(), {"x": torch.ones(5, 3)}

def lam():
    net = Net()
    net.act.f = lambda x: x
    return net

class Main(Net):
    pass

Main.__module__ = "__main__"
"""


PARTS = "from torch import nn\n\nclass Act(nn.Module):\n    def forward(self, x):\n        return x.relu()\n"


def forget() -> None:
    for name in ("pk_mine", "model", "pk_parts", "pk_parts.act"):
        sys.modules.pop(name, None)


def report(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)["reports"][0]
    return found


def printed(err: str) -> list[str]:
    """The command on the last line of stderr, for `main`."""
    command = shlex.split(err.splitlines()[-1])
    assert command[:2] == ["hookcli", "package"]
    return command[1:]
