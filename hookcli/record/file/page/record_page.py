"""A record as the payload of a page: every module over every recorded step, and the last steps in full."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from hookcli.checks.judgement import PROBE
from hookcli.record.file.page.record_facts import run_facts, run_notes
from hookcli.record.file.page.track import RankTracks, Track
from hookcli.record.file.ranks.ranked_record import RankedRecord, open_record
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import Key, NonFinite, StepEntry, is_spoiled
from hookcli.record.file.views.headlines import unmixed, wrong_lines
from hookcli.record.file.views.outcome import judged_reports
from hookcli.record.file.views.overview import in_full, overview, rows_before
from hookcli.record.file.views.ranks_view import lacking
from hookcli.record.file.views.run_lines import compiled_lines, non_finite_line
from hookcli.registry.pieces import pieces
from hookcli.reporters.html import HtmlReporter
from hookcli.reporters.html.joined import beside
from hookcli.reporters.html.page import shown_columns
from hookcli.table import SCHEMA, Report, document, strict
from hookcli.table.columns import names
from hookcli.table.columns.recorded import RECORDED, STEP_CHARTS
from hookcli.table.formatting import clock, counted

_CHARTS = chain.from_iterable(charts.items() for _, charts in pieces("charts", dict))
CHARTS_OF_PARTS = [(title, {name: ""}) for name, title in _CHARTS]
"""Charts of the figures that parts of capabilities report of whole steps, each of one figure."""
_MOST_STEPS = 10_000
_MOST_LOSSES = 4_000
_MOST_CELLS = 1_000_000  # modules times steps of a model in a phase: megabytes per statistic
_MOST_FINE_CELLS = 250_000  # figures have four digits with as many, and three with more


def names_of_figures(tracks: Iterable[Mapping[str, Any]]) -> set[str]:
    """The names of the figures in tracks, as the page has them, and in their groups."""
    return {figure["name"] for track in tracks for part in (track, *track["groups"]) for figure in part["figures"]}


class RecordPage:
    """The page of a record, which may grow: holds a few bytes per figure, and reads the last steps in full.

    Of a model and phase with too many steps for a page only every Nth is on it, besides the last one and those with a
    non-finite value.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self._tracks: dict[Key, Track] = {}
        self._ranks = RankTracks(record) if isinstance(record, RankedRecord) else None
        self._seen: set[int] = set()
        entries = self.record.finished(self.record.entries)
        number = {key: sum(entry.key == key for entry in entries) for key in dict.fromkeys(e.key for e in entries)}
        modules = {(step.model, step.phase): len(overview(step).rows) for step in self.record.last(entries)}
        most = {key: max(2, min(_MOST_STEPS, _MOST_CELLS // max(modules.get(key, 1), 1))) for key in number}
        self._strides = {key: -(-number[key] // most[key]) for key in number}

    def take(self, progress: Callable[[StepEntry], None] = lambda entry: None) -> bool:
        """Take in the steps that the record has by now. Returns whether there were any.

        `progress` is called before each.
        """
        chosen = [entry for entry in self._chosen() if entry.line not in self._seen]
        for entry in chosen:
            progress(entry)
            self._seen.add(entry.line)
            for step in self.record.steps([entry]):
                if step.reports:
                    self._tracks.setdefault(entry.key, Track(*entry.key)).take(step)
                    if self._ranks:
                        self._ranks.take(entry)
        return bool(chosen)

    def _chosen(self) -> Iterator[StepEntry]:
        bad = {(one.model, one.phase, one.step) for one in self.record.non_finite}
        entries = self.record.finished(self.record.entries)
        last = {entry.key: entry for entry in entries}
        counts = dict.fromkeys(last, 0)
        for entry in entries:
            number = counts[entry.key]
            counts[entry.key] += 1
            nth = number % self._strides.get(entry.key, 1) == 0
            if nth or entry is last[entry.key] or (*entry.key, entry.step) in bad:
                yield entry

    @property
    def is_full(self) -> bool:
        """True if a record that grows has twice the steps that a page can show: a new page shows fewer of them."""
        return any(
            track.cells > 2 * _MOST_CELLS or len(track.steps) > 2 * _MOST_STEPS for track in self._tracks.values()
        )

    def counts(self) -> list[int]:
        """The number of steps on the page, by track."""
        return [len(track.steps) for track in self._tracks.values()]

    def payload(self, live: Mapping[str, object] | None = None, since: Sequence[int] = ()) -> dict[str, Any]:
        """The page's payload, strict JSON; `live` says of one that is served where its news are.

        With `since`, the number of steps of each track that the reader has, matrices hold the later ones alone.
        """
        tracks = list(self._tracks.values())
        coarse = sum(track.cells for track in tracks) > _MOST_FINE_CELLS
        have = [*since, *[0] * (len(tracks) - len(since))]
        reports, of_bad = self._reports()
        settings = [*chain.from_iterable(line.reports for line in self.record.settings)]
        faults, asides = unmixed(wrong_lines(self.record))
        steps: dict[str, Any] = {
            "facts": run_facts(self.record, tracks),
            "faults": faults,
            "notes": run_notes(self.record, [*asides, *self._remarks(reports, live is not None)], rounded=coarse),
            "charts": [*STEP_CHARTS, *CHARTS_OF_PARTS],
            "settings": document(settings)["reports"],
            "tracks": [
                {**track.payload(number, coarse), "losses": self._losses(track)}
                for track, number in zip(tracks, have, strict=True)
            ],
            "ranks": self._ranks.payload() if self._ranks else None,
            "said": [{"model": x.model, "step": x.step, "line": x.said} for x in self.record.of_parts if x.said],
            "non_finite": [
                {name: getattr(one, name) for name in _OF_NON_FINITE} | {"line": non_finite_line(one), "reports": at}
                for one, at in zip(self.record.non_finite, of_bad, strict=True)
            ],
        }
        documents, ranked = document(reports)["reports"], steps["ranks"]["table"] if self._ranks else []
        columns = shown_columns([*documents, *ranked], names_of_figures(steps["tracks"]).union(names(RECORDED)))
        places = list[str]()
        for track in tracks:
            columns |= track.looks
            places += track.fqns
        title = self.record.header.name if self.record.header else self.record.path.name
        about: dict[str, Any] = {"schema": SCHEMA, "kind": "record", "title": title, "live": live}
        contents = {"reports": documents, "steps": steps, "columns": columns}
        return {**about, **contents, **beside(reports, settings, places)}

    def _losses(self, track: Track) -> dict[str, Sequence[object]] | None:
        """The loss of every step of a model that was trained; of very many, of every Nth and those not finite."""
        losses = self.record.losses_of(track.model) if track.phase == "train" else {}
        stride = -(-len(losses) // _MOST_LOSSES)
        kept = [item for n, item in enumerate(losses.items()) if not n % stride or not math.isfinite(item[1])]
        return {"steps": [step for step, _ in kept], "values": [strict(loss) for _, loss in kept]} if kept else None

    def _reports(self) -> tuple[list[Report], list[list[int]]]:
        """The reports of the last steps, and of those with a non-finite value; and where the rows before such begin.

        After a loss that was not finite the first step and the last are among them: the page opens at the last.
        """
        bad = {(one.model, one.phase, one.step) for one in self.record.non_finite}
        entries = self.record.entries
        spoiled = [entry for entry in entries if is_spoiled(entry, self.record.non_finite)]
        firsts, lasts = ({entry.key: entry for entry in order} for order in (reversed(spoiled), spoiled))
        ends = [*firsts.values(), *lasts.values()]
        chosen = [entry for entry in entries if (*entry.key, entry.step) in bad or entry in ends]
        steps = list(self.record.steps(chosen)) if chosen else []  # the file may not exist yet
        taken = {(step.model, step.phase, step.step) for step in steps}
        steps += [step for step in self.record.last() if (step.model, step.phase, step.step) not in taken]
        reports = judged_reports(self.record, steps, in_full)
        places = []
        for one in self.record.non_finite:
            rows = rows_before(one)
            places.append(list(range(len(reports), len(reports) + len(rows))))
            reports += rows
        return reports, places

    def _remarks(self, reports: Sequence[Report], live: bool) -> list[str]:
        """Lines on compiling, and on what the record lacks: an end, unless the page is live; steps, ranks, lines.

        `reports`: all reports of the page, the verdict on the run as a whole among them.
        """
        record = self.record
        lines = compiled_lines(record.end)
        of_run = [report for report in reports if report.probe == PROBE and "step" not in report.meta]
        lines += [finding.message for report in of_run for finding in report.findings]
        lines += [] if record.header else ["the record has no header, so the script and its settings are unknown"]
        if record.end is None and not live:
            ago = clock(max(time.time() - record.written(), 0))
            why = "the script was killed, or still ran"
            lines.append(f"no end is recorded: {why}; the last line came {ago} before this page")
        lines += lacking(record)
        for (model, phase), stride in self._strides.items():
            if stride > 1:
                number = counted(sum(entry.key == (model, phase) for entry in record.entries), "step")
                lines.append(f"{model}, {phase}: {number} recorded, one in {stride:,} is on this page")
        left_out = len(record.entries) - len(record.finished(record.entries))
        if left_out:
            lines.append(f"{counted(left_out, 'step')} left out, not finished (hookcli show --step N shows one)")
        return lines


def frame(path: Path) -> str:
    """The page of the record at a path, in a frame of a notebook."""
    steps = RecordPage(open_record(path))
    steps.take()
    payload = steps.payload()
    return HtmlReporter().frame([Report.from_dict(report) for report in payload["reports"]], payload=payload)


_OF_NON_FINITE = [field.name for field in fields(NonFinite) if field.name != "reports"]
