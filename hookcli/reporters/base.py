"""The interface of a reporter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from hookcli.report import Report
from hookcli.report.grouping import View

# About a screen, where the output has no height of its own.
SCREEN = 40


class Reporter(Protocol):
    """Turns reports into text.

    `suffixes` are the file names that mean this format. `render` gets reports that are sorted and narrowed already, and
    groups them by `view.depth` only if it is for people and the depth was left open. A reporter that suits only some
    reports has an attribute `needs`, the columns that they must have; it gets every row, whatever the depth.
    """

    suffixes: ClassVar[tuple[str, ...]]

    def render(self, reports: Sequence[Report], view: View) -> str: ...
