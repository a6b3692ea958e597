"""The interface of a reporter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from hookcli.report import Report
from hookcli.report.grouping import View

# About a screen; used if the output has no height.
SCREEN = 40


class Reporter(Protocol):
    """Turns reports into text. A reporter of another distribution needs only `render`; each attribute has a default."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """File suffixes that select this format."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Columns that a report must have. A reporter that requires any gets every row, whatever the depth."""
    command: ClassVar[str] = ""
    """The command whose reports have these columns, named in help and messages; "" for all commands."""
    for_people: ClassVar[bool] = False
    """True if the output includes totals and remarks in words; commands then don't repeat them on stderr."""

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Return the reports as text. They are sorted and filtered already.

        `view.depth` None leaves the depth to the reporter: formats for people group rows to fit a screen.
        """
