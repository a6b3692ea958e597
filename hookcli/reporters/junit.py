"""JUnit XML, which CI systems show as test results: a suite per model, a test case per check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element, SubElement

from hookcli.reporters import footer
from hookcli.reporters.base import Reporter
from hookcli.reporters.findings import COMMAND, NEEDS, sentence, title
from hookcli.table import Finding, Reason, Report
from hookcli.table.formatting import figure
from hookcli.table.grouping import View
from hookcli.table.printable import printable

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2


class JunitReporter(Reporter):
    """JUnit XML as Jenkins' xUnit plugin and GitLab read it.

    A check with findings at least as severe as --fail-on is a failure, a crash is an error, a check that could not
    judge is skipped; less severe findings are in the output of a passed case.
    """

    suffixes = (".xml",)
    needs = NEEDS
    command = COMMAND

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write a test suite per report."""
        root = Element("testsuites", name="hookcli check")
        counts = {"tests": "", "failures": "/failure", "errors": "/error", "skipped": "/skipped"}
        for report in map(partial(printable, lines=True), reports):
            suite = SubElement(root, "testsuite", name=_legal(report.model))
            suite.set("time", f"{report.meta.get('seconds', 0):.3f}")
            for check in report.meta.get("checks", ()):
                case = _case(suite, report, title(check))
                bad, mild = list[Finding](), list[Finding]()
                for finding in report.findings:
                    if finding.check == check:
                        fails = finding.fails(report.meta.get("fail_on", "error"))
                        (bad if fails else mild).append(finding)
                if bad:
                    kind, message = (
                        "error" if check == "HK001" else "failure",
                        _legal("; ".join(f.message for f in bad)),
                    )
                    SubElement(case, kind, type=check, message=message).text = _legal(_told(report, bad))
                if mild:
                    SubElement(case, "system-out").text = _legal(_told(report, mild))
            for item in report.skipped:
                if item.kind is Reason.NOT_JUDGED:
                    SubElement(_case(suite, report, item.fqn), "skipped", message=_legal(item.reason))
            for name, path in counts.items():
                suite.set(name, str(len(suite.findall(f"testcase{path}"))))
            lines = f"{footer.totals_line(report)}\n{footer.run_line(report)}"
            SubElement(suite, "system-out").text = _legal(lines)
        ET.indent(root)
        text = ET.tostring(root, encoding="unicode")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(suite: Element, report: Report, name: str) -> Element:
    return SubElement(suite, "testcase", classname=_legal(f"hookcli.{report.model}"), name=_legal(name))


def _told(report: Report, findings: Sequence[Finding]) -> str:
    lines = []
    for finding in findings:
        limit = f", threshold {figure(finding.threshold)}" if finding.threshold is not None else ""
        figures = f" (figure {figure(finding.value)}{limit})" if finding.value is not None else ""
        lines.append(f"{sentence(report, finding)}{figures}")
    return "\n".join([*lines, *dict.fromkeys(finding.hint for finding in findings)])


def _legal(text: str) -> str:
    return _ILLEGAL.sub("?", text)
