"""Spans of a Chrome trace where a model goes on after an exception in one of its parts."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

import hookcli
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.hooks.kinds import HookKind
from hookcli.reporters.chrome import ChromeReporter
from hookcli.table.grouping import View


class Fails(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.part, self.error = nn.Linear(2, 2), error

    def forward(self, x: Tensor) -> Tensor:
        self.part(x)
        raise self.error


class Catches(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.risky, self.safe, self.error = nn.Sequential(Fails(error)), nn.Linear(2, 2), error

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.risky(x)
        except self.error:
            return self.safe(x)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_spans_that_an_exception_left_end_before_the_span_around_them(error: type[BaseException]) -> None:
    probe = TraceProbe([HookKind.FORWARD_PRE, HookKind.FORWARD])
    [report] = hookcli.capture(Catches(error), torch.ones(1, 2), [probe])
    events = json.loads(ChromeReporter().render([report], View()))["traceEvents"]
    spans = [(e["ph"], e["name"], e["args"].get("failed", False)) for e in events if e["ph"] in "BE"]
    assert spans == [
        ("B", "Catches", False),
        ("B", "risky", False),
        ("B", "risky.0", False),
        ("B", "risky.0.part", False),
        ("E", "risky.0.part", False),
        ("B", "safe", False),
        ("E", "safe", False),
        ("E", "risky.0", True),
        ("E", "risky", True),
        ("E", "Catches", False),
    ]
