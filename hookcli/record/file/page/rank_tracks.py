"""Each rank's own figures over steps, and the table of ranks, for a record's page."""

from __future__ import annotations

from hookcli.record.file.page.track import columnar
from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.record_lines import Key, StepEntry
from hookcli.record.file.views.over_time import model_report, model_row, needed
from hookcli.record.file.views.overview import overview
from hookcli.record.file.views.query import Query
from hookcli.record.file.views.ranks_view import rank_remarks, ranks_beside
from hookcli.table import Row, document


class RankTracks:
    """The figures of whole models, by rank, over the steps that were taken."""

    def __init__(self, record: RankedRecord) -> None:
        self._record = record
        self._rows: dict[tuple[Key, int], dict[int, Row]] = {}
        self._steps: dict[Key, list[int]] = {}

    def take(self, entry: StepEntry) -> None:
        """Add a step as each rank has recorded it."""
        number = len(self._steps.setdefault(entry.key, []))
        self._steps[entry.key].append(entry.step)
        for rank, step in self._record.steps_of_ranks(entry, needed("")):
            self._rows.setdefault((entry.key, rank), {})[number] = model_row(step, overview(step))

    def payload(self) -> dict[str, object]:
        """The figures as JSON; None where a rank lacks a step. `table` is a report with a row per rank."""
        tracks = []
        for ((model, phase), rank), rows in self._rows.items():
            own = [rows.get(number, Row({})) for number in range(len(self._steps[model, phase]))]
            columns = model_report(model, phase, list(rows.values())).columns
            tracks.append({"model": model, "phase": phase, "rank": rank, "figures": columnar(columns, own)})
        table = ranks_beside(self._record, Query(), None)[:1]
        return {
            "number": self._record.ranks,
            "missing": self._record.missing(),
            "remarks": rank_remarks(self._record),
            "tracks": tracks,
            "table": document(table)["reports"],
        }
