"""One model in one phase over its recorded steps: packed matrices of modules by steps, and figures per step.

And the figures of whole models by rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookcli.record.file.page.rounded import ABSENT, Rounded, packed_counts
from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.record_lines import Key, RecordedStep, StepEntry
from hookcli.record.file.views.over_time import beside_fqn, figure_columns, history, needed
from hookcli.record.file.views.over_time import figures as figures_of
from hookcli.record.file.views.overview import further, overview
from hookcli.record.file.views.query import Query
from hookcli.record.file.views.ranks_view import ranks_beside
from hookcli.reporters.html.shown_rows import shown_rows
from hookcli.table import Column, Kind, Report, Row, Shown, document, strict
from hookcli.table.columns.recorded import RECORDED
from hookcli.table.marks import faults
from hookcli.table.tree import Tree

_Place = tuple[str, str]  # fqn and path
_ABOUT_MODULES = ("type", "shape", "dtype", "calls")
_WHEN = ("step", "forward")
_COUNTS = [column for column in RECORDED if column.shown == Shown.MARK]
_FIGURES = [column for column in RECORDED if column not in _COUNTS]


class Track:
    """The steps of a model in a phase. Holds a few bytes per figure, and no report."""

    def __init__(self, model: str, phase: str) -> None:
        self.model = model
        self.phase = phase
        self.steps: list[int] = []
        self._forwards: list[int | None] = []
        self._unfinished: list[int] = []
        self._times: list[float | None] = []
        self._modules: dict[_Place, dict[str, object]] = {}
        self._order: list[_Place] = []
        self._cells: list[tuple[list[_Place], Rounded, NDArray[np.float64]]] = []
        self._rows: list[Row] = []
        self._further: dict[str, dict[int, tuple[list[_Place], Rounded]]] = {}
        """By the name of a column of a further probe: its figures, by number of the step."""
        self.looks: dict[str, dict[str, Any]] = {}
        """How the page shows these columns: like figures of the probe."""
        self._groups: dict[str, dict[int, Row]] = {}
        self._group_columns: Sequence[Column] = ()
        self._remarks: dict[str, dict[Hashable, tuple[dict[str, Any], list[list[int]]]]] = {
            kind: {} for kind in ("notes", "skipped", "findings")
        }
        """By kind and key: each remark once, with the spans of its steps, both ends included."""

    @property
    def cells(self) -> int:
        """Number of modules times steps."""
        return len(self._modules) * len(self.steps)

    @property
    def fqns(self) -> list[str]:
        """The names of the modules, and of those whose heads or tensors have rows."""
        return [fqn for fqn, _ in self._order]

    def take(self, step: RecordedStep) -> None:
        """Add the next step."""
        number, joined = len(self.steps), overview(step)
        self.steps.append(step.step)
        self._forwards.append(step.forward)
        self._times.append(step.at)
        self._unfinished += [] if step.complete else [number]
        self._rows.append(figures_of(step, joined))
        places = [*map(self._place, joined.rows)]
        self._arrange(places)
        counts = _matrix([[row.get(column.name) for column in _COUNTS] for row in joined.rows], len(_COUNTS))
        figures = [[_figure(row, column) for column in _FIGURES] for row in joined.rows]
        measured = [[value is not None for value in values] for values in figures]
        values = Rounded.of(_matrix(figures, len(_FIGURES)), np.array(measured, np.bool_).reshape(-1, len(_FIGURES)))
        self._cells.append((places, values, counts))
        self._take_remarks(number, step, joined)
        for report in further(step):
            self._take_further(number, report)
        for report in (report for report in step.reports if report.probe == "optimizer"):
            self._group_columns = report.columns
            for place, row in enumerate(report.rows):
                title = f"{row.get('optimizer') or 'optimizer'}, group {row.get('group', place)}"
                title = f"{title} #{place + 1}" if number in self._groups.get(title, ()) else title  # of another Adam
                self._groups.setdefault(title, {})[number] = row

    def _take_further(self, number: int, report: Report) -> None:
        """Add the figures of a further probe, by place: a module's stand in its row, a head's below."""
        for column in (column for column in figure_columns(report) if column not in RECORDED):
            rows = [row for row in report.rows if type(row.get(column.name)) in (int, float)]
            places = [self._place(row, beside_fqn(row)) for row in rows]
            if not {*self._order}.issuperset(places):
                own = {place[0]: place for place in self._order}
                for fqn, of_module in groupby(places, itemgetter(0)):
                    self._arrange([*([own[fqn]] if fqn in own else self._order[-1:]), *of_module])
            values = _matrix([[_figure(row, column)] for row in rows], 1)
            of_step = places, Rounded.of(values, np.ones_like(values, np.bool_))
            self._further.setdefault(column.name, {})[number] = of_step
            self.looks[column.name] = {"about": report.probe} | column.looks()

    def _place(self, row: Row, path: str = "") -> _Place:
        place = row.fqn, path or str(row.get("path") or "")
        about = {name: row.get(name) for name in _ABOUT_MODULES if row.get(name) is not None}
        self._modules.setdefault(place, {}).update(about)
        return place

    def _arrange(self, places: Sequence[_Place]) -> None:
        """Put modules that no earlier step had after those that come before them in this step."""
        held = set(self._order)
        for number, place in enumerate(places):
            if place not in held:
                after = self._order.index(places[number - 1]) + 1 if number else 0
                self._order.insert(after, place)
                held.add(place)

    def _take_remarks(self, number: int, step: RecordedStep, joined: Report) -> None:
        """Note the remarks on step `number`; of remarks with one key, the latest text stays."""
        findings = (one for report in step.reports if report.probe == "check" for one in report.findings)
        remarks: Iterator[tuple[str, Hashable, dict[str, Any]]] = chain(
            (("notes", note, {"text": note}) for note in step.notes),
            (("skipped", item, item.to_dict()) for item in joined.skipped),
            (("findings", (one.check, one.severity, one.fqn), asdict(one)) for one in findings),
        )
        for kind, key, text in remarks:
            spans = self._remarks[kind][key][1] if key in self._remarks[kind] else []
            if spans and spans[-1][1] >= number - 1:
                spans[-1][1] = number
            else:
                spans.append([number, number])
            self._remarks[kind][key] = text, spans

    def payload(self, since: int, coarse: bool) -> dict[str, object]:
        """The track as JSON; its matrices hold the steps from number `since` on, with three digits if `coarse`."""
        return {
            "model": self.model,
            "phase": self.phase,
            "title": f"{self.model}, {self.phase.replace('_', ' ')}",
            "since": since,
            "steps": self.steps,
            "forwards": self._forwards,
            "unfinished": self._unfinished,
            "times": self._times,
            "modules": [{"fqn": fqn, "path": path, **self._modules[fqn, path]} for fqn, path in self._order],
            "nodes": self._nodes(),
            "statistics": list(self._statistics(since, coarse)),
            "figures": columnar(history(self.model, self.phase, self._rows).columns, self._rows),
            "groups": [self._group(title, rows) for title, rows in self._groups.items()],
            **{
                kind: [{**text, "steps": spans} for text, spans in remarks.values()]
                for kind, remarks in self._remarks.items()
            },
        }

    def _nodes(self) -> list[dict[str, Any]]:
        """The modules as nodes of a tree, each after its `parent`, whose number it has, or None.

        `row` is its row in the matrices, -1 for a container that never ran by itself. The further tensors that a module
        returned are parts of it.
        """
        tree, nodes, numbers = Tree(), list[dict[str, Any]](), dict[str, int]()
        has_model = any(not fqn for fqn, _ in self._order)

        def take(key: str, fqn: str, name: str, parent: int | None) -> int:
            if key not in numbers:
                numbers[key] = len(nodes)
                nodes.append({"key": key, "fqn": fqn, "path": "", "name": name, "parent": parent, "row": -1})
            return numbers[key]

        for row, (fqn, path) in enumerate(self._order):
            number = None
            for node in reversed([*tree[fqn].chain()]):
                if node.fqn or has_model:
                    number = take(node.fqn, node.fqn, node.name or "(model)", number)
            assert number is not None
            if nodes[number]["row"] >= 0:
                number = take(f"{fqn}: {path}", fqn, path, number)
            nodes[number] |= {"path": path, "row": row}
        return nodes

    def _statistics(self, since: int, coarse: bool) -> Iterator[dict[str, object]]:
        """Every statistic with its matrix (module, step), if any module has it; counts only if any is not 0."""
        at = {place: row for row, place in enumerate(self._order)}
        new = [([*map(at.__getitem__, places)], values, counts) for places, values, counts in self._cells[since:]]
        size = (len(at), len(new))

        def figures(name: str, steps: Iterable[tuple[int, list[int], Rounded]], number: int = 0) -> dict[str, object]:
            rounded = Rounded(np.full(size, ABSENT, np.int16), np.zeros(size, np.int16))
            for column, rows, values in steps:
                rounded.mantissas[rows, column] = values.mantissas[:, number]
                rounded.exponents[rows, column] = values.exponents[:, number]
            return {"name": name, "figures": (rounded.coarser() if coarse else rounded).packed(), "odd": rounded.odd}

        for number, statistic in enumerate(_FIGURES):
            if any((values.mantissas[:, number] != ABSENT).any() for _, values, _ in new):
                steps = ((column, rows, values) for column, (rows, values, _) in enumerate(new))
                yield figures(statistic.name, steps, number)
        for name, by_step in self._further.items():
            later = ((step - since, *of_step) for step, of_step in by_step.items() if step >= since)
            yield figures(name, ((column, [*map(at.__getitem__, places)], values) for column, places, values in later))
        for number, statistic in enumerate(_COUNTS):
            matrix = np.full(size, np.nan)
            for column, (rows, _, counts) in enumerate(new):
                matrix[rows, column] = counts[:, number]
            if np.nansum(matrix):
                yield {"name": statistic.name, "counts": packed_counts(matrix)}

    def _group(self, title: str, rows: Mapping[int, Row]) -> dict[str, object]:
        of = [rows.get(number, Row({})) for number in range(len(self.steps))]
        parameters = next(iter(rows.values())).get("parameters")
        return {"title": title, "parameters": parameters, "figures": columnar(self._group_columns, of)}


def _matrix(rows: Sequence[Sequence[float | None]], width: int) -> NDArray[np.float64]:
    """The figures of rows (row, statistic); NaN where there is none."""
    return np.array(rows, np.float64).reshape(-1, width)


def _figure(row: Row, column: Column) -> float | None:
    """The figure of a row; a count of elements as a share of all."""
    value: float | None = row.get(column.name)
    if column.kind != Kind.ELEMENTS or value is None:
        return value
    return value / row["numel"] if row.get("numel") else None


def columnar(columns: Iterable[Column], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Columns of numbers as JSON, each with the values of all rows, seven digits long; None where a row has none."""
    entries = []
    for column in columns:
        values = [row.get(column.name) for row in rows]
        numbers = [value for value in values if value is not None]
        if column.name not in _WHEN and numbers and all(type(value) in (int, float) for value in numbers):
            short = [value if value is None else strict(float(f"{value:.7g}")) for value in values]
            entries.append({**column.to_dict(), "values": short})
    return entries


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
            self._rows.setdefault((entry.key, rank), {})[number] = figures_of(step, overview(step))

    def payload(self) -> dict[str, object]:
        """The figures as JSON; None where a rank lacks a step. `table` is a report with a row per rank."""
        tracks = []
        for ((model, phase), rank), rows in self._rows.items():
            own = [rows.get(number, Row({})) for number in range(len(self._steps[model, phase]))]
            columns = history(model, phase, list(rows.values())).columns
            tracks.append({"model": model, "phase": phase, "rank": rank, "figures": columnar(columns, own)})
        table = ranks_beside(self._record, Query().within(self._record), None)[:1]
        return {
            "missing": self._record.missing(),
            "tracks": tracks,
            "table": document(table)["reports"],
            "shown": [shown_rows(report, faults(report)) for report in table],
        }
