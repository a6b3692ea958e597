"""A report's table for `print`, the prompt and notebooks, with the columns and the depth that a program asks for."""

from __future__ import annotations

from typing import Any

from hookcli import registry


class PrintedTable:
    """The table of a report: `str` and `repr` are its text, as wide as the terminal; notebooks show it as a page.

    Raises UsageError for a column that the report lacks, and for a depth that is none.
    """

    def __init__(self, report: Any, **view: Any) -> None:
        self._reporter = registry.load("reporters", "table")()
        self._report, self._view = self._reporter.asked(report, **view)

    def __str__(self) -> str:
        """The text: as wide as the terminal, or as it needs where stdout is none; without colour codes."""
        return str(self._reporter.printed(self._report, self._view))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table as a page in a frame, which notebooks show."""
        return str(registry.load("reporters", "html")().frame([self._report], self._view))
