"""Shared by formats of findings: the check behind an id, and the text of a finding."""

from __future__ import annotations

from typing import Any

from hookcli import registry
from hookcli.errors import PluginError
from hookcli.table import Finding, Report, formatting

NEEDS = ("check", "severity", "hint")  # the columns of a report of findings
COMMAND = "hookcli check"


def rule(name: str) -> Any:
    """Return the check with this id; None if a saved report names one that is not installed."""
    try:
        return registry.load("checks", name)
    except PluginError:
        return None


def title(name: str) -> str:
    """HK012 vanishing-gradients."""
    check = rule(name)
    return f"{name} {check.name}" if check else name


def sentence(report: Report, finding: Finding) -> str:
    """Write a finding on one line: its place and its message."""
    place = f"{report.model}: {finding.fqn}" if finding.fqn else report.model
    return f"{place}: {finding.message}"


def figures(finding: Finding) -> str:
    """Write the figure and the threshold, if the finding has them."""
    if finding.value is None:
        return ""
    against = f", threshold {formatting.figure(finding.threshold)}" if finding.threshold is not None else ""
    return f"figure {formatting.figure(finding.value)}{against}"
