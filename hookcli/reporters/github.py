"""Annotations of a GitHub workflow, which GitHub shows next to the code of a pull request.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands#setting-an-error-message
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hookcli.reporters import footer
from hookcli.reporters.base import Reporter
from hookcli.reporters.findings import COMMAND, NEEDS, sentence, title
from hookcli.table import Report
from hookcli.table.grouping import View
from hookcli.table.printable import printable


class GithubReporter(Reporter):
    """A workflow command per finding, and a notice that sums up each model."""

    needs = NEEDS
    command = COMMAND

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a workflow command per line."""
        return "".join(f"{line}\n" for report in reports for line in _lines(printable(report, lines=True)))


def _lines(report: Report) -> Iterator[str]:
    for finding in report.findings:
        command = {"error": "error", "info": "notice"}.get(finding.severity, "warning")
        where = {} if finding.file is None else {"file": finding.file, "line": str(finding.line or 1)}
        properties = {**where, "title": title(finding.check)}
        written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
        text = "\n".join(filter(None, (sentence(report, finding), finding.hint)))
        yield f"::{command} {written}::{_data(text)}"
    yield f"::notice title={_property(f'hookcli check {report.model}')}::{_data(footer.totals_line(report))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
