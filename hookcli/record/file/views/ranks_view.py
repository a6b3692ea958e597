"""Shows the ranks of a record beside each other, and says in which way one of them differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import End, RecordedStep, StepEntry
from hookcli.record.file.views.overview import overview, step_totals
from hookcli.record.file.views.query import Query, Selection
from hookcli.record.file.views.run_lines import left_out_line, non_finite_line
from hookcli.registry.pieces import answers
from hookcli.table import Report, Row, formatting
from hookcli.table.columns import names
from hookcli.table.columns.recorded import RANKS
from hookcli.table.columns.training import STEP_PARTS
from hookcli.table.ranks import beside, ranks_named

_SLOW = 1.25
"""A rank is slow if its step took this many times the median of all ranks, or more."""
_PARTS = names(STEP_PARTS)
_FIRST = "first non-finite value: "


def ranks_beside(record: RankedRecord, selection: Selection, ranks: Sequence[int] | None) -> list[Report]:
    """The selected steps of these ranks (None: all) beside each other, after a table with a row per rank."""
    asked = [rank for rank in record.parts if ranks is None or rank in ranks]
    if selection.over_time is not None:
        return [
            replace(report, model=f"{report.model} (rank {rank})")
            for rank in asked
            for report in replace(selection, record=record.parts[rank]).reports()
        ]
    chosen = _chosen(record, selection)
    by_report: dict[tuple[object, ...], dict[int, Report]] = {}
    for rank in asked:
        own = [record.held(entry)[rank] for entry in chosen if rank in record.held(entry)]
        part = replace(record.parts[rank], entries=own)
        for report in replace(selection, record=part).reports() if own else ():
            by_report.setdefault((report.probe, report.model, report.meta.get("phase")), {})[rank] = report
    reports = [beside(parts) for parts in by_report.values()]
    last = {rank: step for entry in chosen[:1] for rank, step in record.steps_of_ranks(entry) if rank in asked}
    table = [_row(record, rank, last, reports) for rank in asked]
    name = record.header.name if record.header else str(record.path)
    return [Report("ranks", name, RANKS, table, {}, {}, grouping="list"), *reports]


def rank_remarks(record: RankedRecord) -> list[str]:
    """Remarks, one per line: missing parts, ranks that ended differently, and which one was non-finite first."""
    lines = []
    if missing := [rank for rank in record.missing() if rank not in record.unreadable]:
        lines.append(f"no part of {ranks_named(missing)} of {record.ranks:,} is here: figures cover the others")
    lines += [f"rank {rank} is left out: {why}" for rank, why in record.unreadable.items()]
    by_end: dict[str, list[int]] = {}
    for rank, part in record.parts.items():
        by_end.setdefault(_stopped(part), []).append(rank)
    if len(by_end) > 1:
        usual = max(by_end, key=lambda end: len(by_end[end]))
        lines += [f"{ranks_named(ranks)}: {end}" for end, ranks in by_end.items() if end != usual or len(ranks) == 1]
    lines += [str(remark) for _, remark in answers("remark_on_ranks", record) if remark]
    bad = record.non_finite_by_rank()
    if bad:
        first = bad[0][1].step
        common = bad[0][1].what != "parameter gradient"  # which ranks may have from each other
        bad = [(r, one) for r, one in bad if not (common and one.what == "parameter gradient" and one.step == first)]
        ranks = {rank: one.step for rank, one in reversed(bad)}
        where = sorted(rank for rank, step in ranks.items() if step == first)
        later = [f"rank {rank} from step {step:,}" for rank, step in sorted(ranks.items()) if step > first]
        lines.append(f"non-finite first on {ranks_named(where)}{''.join(f', {each}' for each in later[:3])}")
    return lines


def lacking(record: Record) -> list[str]:
    """Remarks, one per line, on what a record lacks: steps, forwards, ranks, and damaged lines."""
    lines = [] if record.entries else ["no step was recorded"]
    lines += filter(None, [left_out_line(record.end)] if record.end else [])
    lines += rank_remarks(record) if isinstance(record, RankedRecord) else []
    return [*lines, *filter(None, [record.damage()])]


def _stopped(part: Record) -> str:
    """How and where a rank ended."""
    steps = [entry.step for entry in part.entries if entry.phase == "train"] or [entry.step for entry in part.entries]
    return f"{_ended(part.end)}; {f'last recorded step {max(steps):,}' if steps else 'no recorded step'}"


def _ended(end: End | None) -> str:
    if end is None:
        return "no end: killed, or still running"
    code = "" if end.exit_code is None else f"exit code {end.exit_code}"
    return " ".join(filter(None, [end.error, f"({code})" if end.error and code else code])) or "ended"


def _chosen(record: RankedRecord, query: Query) -> list[StepEntry]:
    """The entries to show: the selected step's, else the last of each model and phase."""
    entries = query.of(record.entries)
    if query.step is not None:
        return [entry for entry in entries if entry.step == query.step]
    last = {entry.key: entry for entry in sorted(entries, key=record.counts)}
    return [last[key] for key in dict.fromkeys(entry.key for entry in entries)]


def _row(record: RankedRecord, rank: int, steps: Mapping[int, RecordedStep], reports: Sequence[Report]) -> Row:
    part, step = record.parts[rank], steps.get(rank)
    of_rank = [row for report in reports for row in report.rows if row.get("rank") == rank and row.get("deviates")]
    more = f", and {len(of_rank) - 1:,} more" if of_rank[1:] else ""
    values: dict[str, object] = {
        "rank": rank,
        "steps": part.end.program_steps if part.end else None,
        "recorded_steps": sum(entry.phase == "train" for entry in part.entries),
        "recorded_forwards": sum(entry.phase != "train" for entry in part.entries),
        "deviates": f"{of_rank[0].fqn or 'the model'}: {of_rank[0]['deviates']}{more}" if of_rank else None,
        "non_finite": non_finite_line(part.non_finite[0]).removeprefix(_FIRST) if part.non_finite else None,
        "ended": _ended(part.end),
    }
    if step is not None:
        values |= {"step": step.step, "loss": step.loss, "seconds": step.seconds, "slower": _slower(rank, steps)}
        totals = overview(step).totals
        values |= {key: totals[key] for key in ("param_grad", *_PARTS) if key in totals}
    return Row(values)


def _slower(rank: int, steps: Mapping[int, RecordedStep]) -> str | None:
    """How much longer this rank took for a step than is usual, if it did.

    The backward pass does not count where the rest is known: ranks wait there for the slowest one.
    """
    seconds = {}
    for each, step in steps.items():
        known = [value for key, value in step_totals(step).items() if key in _PARTS and key != "backward_seconds"]
        seconds[each] = math.fsum(known) if known else step.seconds or 0.0
    usual = median(seconds.values())
    times = seconds[rank] / usual if usual else 0.0
    return f"{formatting.number(times)} times the median" if times >= _SLOW else None
