"""`ReportPage` and `ReportList`: the reports of one run, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hookcli import registry
from hookcli.errors import UsageError, unknown
from hookcli.reporters import selection
from hookcli.table.files import write_whole
from hookcli.table.grouping import View
from hookcli.table.report import Report

_FORMATS = ("html", "json")


class ReportList(list[Report]):
    """A list of the reports of one run, which notebooks show as one page."""

    def _repr_html_(self) -> str | None:
        """The page in a frame, which notebooks show; None for an empty list, which they show as text."""
        return str(registry.load("reporters", "html")().frame(self)) if self else None


@dataclass(frozen=True, repr=False)
class ReportPage:
    """The reports of one run of a model, which notebooks show as a page.

    `reports` holds the findings of the checks first, then shapes, the flow of tensors, and statistics of activations,
    gradients and parameters.
    `error` is the error of a model that failed; the reports end there.
    """

    reports: Sequence[Report]
    error: Exception | None = None

    def __repr__(self) -> str:
        """One line: the model and the probes."""
        return f"<ReportPage of {self.reports[0].model}: {', '.join(report.probe for report in self.reports)}>"

    def _repr_html_(self) -> str | None:
        """The page in a frame, which notebooks show."""
        return ReportList(self.reports)._repr_html_()

    def save(self, path: str | Path) -> None:
        """Write the page to a file, or the reports where the suffix is .json. Raises UsageError if that can't be."""
        path = Path(path)
        name = selection.by_suffix(path.suffix)
        if name not in _FORMATS:
            raise UsageError(f"{path}: {unknown('suffix', path.suffix, ['.html', '.json'])}")
        text: str = selection.by_name(name)().render(self.reports, View())
        try:
            write_whole(path, text)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
