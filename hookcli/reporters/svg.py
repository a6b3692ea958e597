"""The autograd graph as a picture."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from hookcli.errors import UsageError
from hookcli.report import Report
from hookcli.report.grouping import View
from hookcli.reporters.base import Reporter


class SvgReporter(Reporter):
    """Graphviz's drawing of `--format dot`. Raises UsageError when it is made if Graphviz is not installed."""

    suffixes = (".svg",)
    needs = ("id", "next")
    command = "hookcli graph"

    def __init__(self) -> None:
        if shutil.which("dot") is None:
            raise UsageError("--format svg: needs Graphviz, whose `dot` is not on PATH; --format dot works without it")

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Let Graphviz draw the graph."""
        from hookcli.reporters.dot import drawn

        return "".join(drawn(report, view.depth).pipe(format="svg", encoding="utf-8") for report in reports)
