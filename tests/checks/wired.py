"""Findings of the checks of wiring, HK034 to HK037."""

from __future__ import annotations

from typing import Any

import torch
from support import untouched
from torch import nn

from hookcli import check

WIRING = ["HK034", "HK035", "HK036", "HK037"]


def findings(model: nn.Module, x: Any = None, **settings: Any) -> list[tuple[str, str, str, float | None]]:
    torch.manual_seed(0)
    x = torch.randn(16, 4) if x is None else x
    with untouched(model):
        report = check(model, x, **{"select": WIRING, **settings})
    assert report.totals["checks"] == len(report.meta["checks"]) == len(settings.get("select", WIRING))
    return [(found.check, found.fqn, found.message, found.value) for found in report.findings]
