"""Hooks registered by hand."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.autograd import graph

import hookcli
from hookcli.hooks.kinds import HookKind
from hookcli.probes.trace import TraceProbe
from hookcli.table import Report

exact_only = pytest.mark.skipif(not hasattr(graph, "node_creation_hook"), reason="PyTorch has this hook since 2.14")


WHOLE: dict[str, Any] = {"step": hookcli.Step(optimizer="adamw", state_dict=True)}


Event = tuple[str, str]


def traced(model: nn.Module, inputs: Any, *kinds: str, **options: Any) -> Report:
    probe = TraceProbe([HookKind(kind) for kind in kinds]) if kinds else TraceProbe()
    (report,) = hookcli.capture(model, inputs, [probe], **options)
    return report


def events(report: Report) -> list[Event]:
    return [(row["kind"], row.fqn) for row in report.rows]
