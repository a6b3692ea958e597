"""The interface of a reporter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from hookcli.report import Report
from hookcli.report.grouping import View

# About a screen, where the output has no height of its own.
SCREEN = 40


class Reporter(Protocol):
    """Turns reports into text. A reporter of another distribution needs `render` only; each attribute has a default."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of file names that ask for this format."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Columns without which it can't show a report. A reporter that needs some gets every row, whatever the depth."""
    command: ClassVar[str] = ""
    """The command whose reports have these columns, for the help and for messages; empty: those of all commands."""
    for_people: ClassVar[bool] = False
    """Whether it writes totals and remarks in words, which a command then need not repeat on stderr."""

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Write reports, which are sorted and narrowed already.

        `view.depth` None leaves the depth to the reporter: one for people groups rows so that they fit a screen.
        """
