"""Graphs in Graphviz's language, which capabilities draw of their reports."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.errors import UsageError
from hookcli.reporters import footer
from hookcli.reporters.base import Reporter
from hookcli.reporters.digraph import Digraph
from hookcli.reporters.drawings import DRAWINGS, drawing_of
from hookcli.table import Report
from hookcli.table.grouping import View
from hookcli.table.printable import printable

_NODE = {"shape": "box", "style": "filled,rounded", "fillcolor": "white", "fontname": "Helvetica", "fontsize": "10"}
_TITLE = {"labelloc": "t", "fontname": "Helvetica"}


class DotReporter(Reporter):
    """The autograd graph, or the forward flow of tensors: nodes in boxes for the modules that made them.

    With a depth, one node per module at that depth. Nodes that never fired are dashed.
    """

    suffixes = (".dot", ".gv")
    then = "`dot -Tsvg -O {path}` draws it"
    needs_one = tuple(one.needs for one in DRAWINGS)
    commands = tuple(one.command for one in DRAWINGS)

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a graph per report."""
        return "".join(drawn_graph(report, view.depth).source for report in reports)


def drawn_graph(report: Report, depth: float | None) -> Digraph:
    """Draw the graph of one report. Raises UsageError if no capability does, or if its rows have been merged."""
    report = printable(report)
    title = f"{report.probe}: {footer.run_line(report)}"
    graph = Digraph(report.model, {"label": title, **_TITLE})
    graph.attr("node", **_NODE)
    if drawing := drawing_of(report):
        if any(row.get(name) is None for row in report.rows for name in drawing.needs):
            raise UsageError(
                f"the rows of this {report.probe} were merged, and can't be drawn: save it without --depth"
            )
        drawing.draw(graph, report, depth)
    elif report.rows:
        raise UsageError(f"--format dot: nothing that is installed draws a report of {report.probe}")
    return graph
