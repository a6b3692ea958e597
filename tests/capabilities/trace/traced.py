"""Hooks registered by hand."""

from __future__ import annotations

from typing import Any

from torch import nn

import hookcli
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.hooks.kinds import HookKind
from hookcli.table import Report

WHOLE: dict[str, Any] = {"step": hookcli.Step(optimizer="adamw", state_dict=True)}


Event = tuple[str, str]


def traced(model: nn.Module, inputs: Any, *kinds: str, **options: Any) -> Report:
    probe = TraceProbe([HookKind(kind) for kind in kinds]) if kinds else TraceProbe()
    (report,) = hookcli.capture(model, inputs, [probe], **options)
    return report


def events(report: Report) -> list[Event]:
    return [(row["kind"], row.fqn) for row in report.rows]
