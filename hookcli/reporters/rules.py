"""What formats of findings share: the check behind an id, and words about a finding."""

from __future__ import annotations

from typing import Any

from hookcli import registry
from hookcli.errors import PluginError
from hookcli.report import Finding, Report, formatting

NEEDS = ("check", "severity", "hint")  # the columns of a report of findings
COMMAND = "hookcli check"


def rule(name: str) -> Any:
    """The check of an id; None where a saved report names one that is not installed here."""
    try:
        return registry.load("checks", name)
    except PluginError:
        return None


def title(name: str) -> str:
    """HK012 vanishing-gradients."""
    check = rule(name)
    return f"{name} {check.name}" if check else name


def sentence(report: Report, finding: Finding) -> str:
    """Where it is and what was found, on one line."""
    place = f"{report.model}: {finding.fqn}" if finding.fqn else report.model
    return f"{place}: {finding.message}"


def figures(finding: Finding) -> str:
    """The figure and the threshold, where there are any."""
    if finding.value is None:
        return ""
    against = f", threshold {formatting.figure(finding.threshold)}" if finding.threshold is not None else ""
    return f"figure {formatting.figure(finding.value)}{against}"


def fails(report: Report, finding: Finding) -> bool:
    """Whether the finding makes the exit code 1, as --fail-on had it."""
    return finding.fails(report.meta.get("fail_on", "error"))
