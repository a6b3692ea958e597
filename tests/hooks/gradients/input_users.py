"""Users of one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support import untouched
from torch import nn

from hookcli import capture
from hookcli.probes.grads import GradsProbe
from hookcli.table import Report


class Fn(nn.Module):
    """A forward that is given as a function of the module and its arguments."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.body = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


def figures(report: Report) -> dict[tuple[str, str], Any]:
    return {(row.fqn, row["path"]): row.stats for row in report.rows}


def of(kind: str, model: nn.Module, *inputs: Any, **settings: Any) -> Report:
    with untouched(model):
        return capture(model, inputs, [GradsProbe(kind)], **settings)[0]  # type: ignore[arg-type]
