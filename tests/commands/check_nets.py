"""Models to check from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]


PARTS = """
from torch import nn
from net import Net

class Unused(Net):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(2, 2)

class Forgets(Net):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout()

class Fails(Net):
    def forward(self, x):
        return self.fc(self.act(self.conv(x)))

class Trains(Unused):
    def forward(self, x):
        return super().forward(x) if self.training else self.fc(x)

class Reads(Net):
    def forward(self, x):
        return super().forward(x) * float(x.sum() > 0)
"""


IN = ("--input", "8x3x4x4")


def reports(ran: Any) -> list[dict[str, Any]]:
    return json.loads(ran.out)["reports"]


def ids(report: dict[str, Any]) -> list[str]:
    return [finding["check"] for finding in report["findings"]]
