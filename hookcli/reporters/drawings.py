"""Which capabilities draw their reports with Graphviz, and what these must have. Graphviz itself is not imported."""

from __future__ import annotations

from dataclasses import dataclass

from hookcli.registry.capability import Capability, capabilities, load_text
from hookcli.registry.pieces import blamed
from hookcli.table import Report


@dataclass(frozen=True, slots=True)
class Drawing:
    """A kind of graph: the columns that a report must have, the command that makes such reports, and who draws them."""

    needs: tuple[str, ...]
    command: str
    by: Capability

    def draw(self, *about: object) -> None:
        """Call the capability's function. Raises PluginError, which names it, if another distribution's fails."""
        with blamed(self.by, f"drawing={self.by.drawing!r}"):
            load_text(self.by.drawing)(*about)

    def fits(self, report: Report) -> bool:
        """True if the report has the columns, or its rows the values where a choice of columns has left these out."""
        names = {column.name for column in report.columns}.union(*(row.values for row in report.rows[:1]))
        return names.issuperset(self.needs)


DRAWINGS = tuple(Drawing(tuple(one.drawn), f"hookcli {one.name}", one) for one in capabilities() if one.drawing)


def drawing_of(report: Report) -> Drawing | None:
    """The kind of graph that this report is; None if it is none."""
    return next((one for one in DRAWINGS if one.fits(report)), None)
