"""What a formula gives for a model's multiplications."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from support import untouched
from torch import Tensor, nn

from hookcli.engine.capture import capture
from hookcli.table import Report

ones = torch.ones


class Does(nn.Module):
    """A model of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def counted(model: nn.Module | Callable[..., Any], *inputs: Any) -> tuple[int, list[str]]:
    """The model's multiply-accumulates, and what it does without a known cost."""
    model = model if isinstance(model, nn.Module) else Does(model)
    with untouched(model):
        report = capture(model, inputs, ["shapes"])[0]
    return report.totals["macs"], unknown(report)


def unknown(report: Report) -> list[str]:
    return [item.reason for item in report.skipped if "no known cost" in item.reason]
