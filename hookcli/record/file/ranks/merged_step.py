"""One recorded step of all ranks: what a single process with the whole batch would have recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse

from hookcli.checks.judgement import Judgement
from hookcli.record.file.ranks.merged_norms import merge_groups, merge_updates
from hookcli.record.file.record_lines import SHARDED, RecordedStep
from hookcli.table import SEVERITIES, Finding, Report, Row, Skipped
from hookcli.table.merge import merged_values
from hookcli.table.ranks import Parts, common_meta, common_skipped, ranks_named, rows_by_place
from hookcli.table.stats import total
from hookcli.table.times import NAMES


def merge_steps(parts: Mapping[int, RecordedStep], missing: Sequence[int] = ()) -> RecordedStep:
    """The step that these ranks have recorded, as one; `missing` are ranks that should have it, too.

    Activations and gradients belong to the whole batch, and shards are put together. Where gradients are averaged
    (DistributedDataParallel, FSDP2), the loss of the whole batch is the mean of the ranks' losses, and gradients of
    outputs are gradients of that mean. Times are the slowest rank's.
    """
    steps = list(parts.values())
    first = steps[0]
    notes = _notes(parts, missing)
    losses = [step.losses for step in steps]
    if any(len(own) != len(losses[0]) for own in losses):
        notes.append(f"ranks called backward() a different number of times: losses come from rank {next(iter(parts))}")
        losses = losses[:1]
    reports: dict[str, dict[int, Report]] = {}
    for rank, step in parts.items():
        for report in step.reports:
            reports.setdefault(report.probe, {})[rank] = report
    whole: dict[str, Report] = {}
    for probe, own in reports.items():
        whole[probe] = _merged_report(own, parts, whole)
    if {"activations", "grads"} <= whole.keys():
        whole["grads"] = _without_summands(whole["grads"], whole["activations"], first.reports)
    return replace(
        first,
        reports=tuple(whole.values()),
        forwards=max(step.forwards for step in steps),
        observed_forwards=max(step.observed_forwards for step in steps),
        losses=[mean_loss(each) for each in zip(*losses, strict=True)],
        seconds=_slowest(step.seconds for step in steps),
        plain_seconds=_slowest(step.plain_seconds for step in steps),
        notes=tuple(notes),
        complete=all(step.complete for step in steps),
    )


def _notes(parts: Mapping[int, RecordedStep], missing: Sequence[int]) -> list[str]:
    """The notes of all ranks; notes of some ranks with their numbers. A note on shards no longer holds."""
    by_note: dict[str, list[int]] = {}
    for rank, step in parts.items():
        for note in step.notes:
            by_note.setdefault(note, []).append(rank)
    by_note.pop(SHARDED, None)
    notes = [note if len(ranks) == len(parts) else f"{note} ({ranks_named(ranks)})" for note, ranks in by_note.items()]
    return notes + ([f"{ranks_named(missing)} did not record this step"] if missing else [])


def mean_loss(values: Sequence[float]) -> float:
    """The mean of the ranks' values; equal ones, as tensor parallel ranks have them, stay as they are."""
    return values[0] if len(set(values)) == 1 else total(values) / len(values)


def _slowest(seconds: Iterable[float | None]) -> float | None:
    return max((each for each in seconds if each is not None), default=None)


def _merged_report(parts: Parts, steps: Mapping[int, RecordedStep], merged_so_far: Mapping[str, Report]) -> Report:
    first = next(iter(parts.values()))
    if first.probe == "optimizer":
        return merge_groups(parts, steps, merged_so_far)
    if merge := {"check": _verdict, "updates": merge_updates, "time": _slowest_times}.get(first.probe):
        return merge(parts)
    if not any(row.stats for part in parts.values() for row in part.rows):  # of a further probe
        places = ([*by_rank.values()] for by_rank in rows_by_place(parts).values())
        rows = [own[0] if len(own) == 1 else Row(merged_values(own, first.columns)) for own in places]
        return replace(first, rows=rows, skipped=common_skipped(parts), meta=common_meta(parts))
    from hookcli.table.merged_ranks import merged  # imports numpy, which the record of one process can do without

    of_whole_loss = {}
    for rank, report in parts.items():
        of_whole_loss[rank] = report
        replicas = report.meta.get("replicas", 1)  # another word
        if replicas != 1 and report.probe == "grads":
            # Gradients of outputs are recorded of the rank's own loss; the loss of all is the mean over replicas.
            rows = []
            for row in report.rows:
                if row.stats and row.get("kind") != "parameter":
                    row = replace(row, stats=row.stats.scaled(1 / replicas))
                rows.append(row)
            of_whole_loss[rank] = replace(report, rows=rows)
    return merged(of_whole_loss)


def _without_summands(grads: Report, activations: Report, of_rank: Iterable[Report]) -> Report:
    """The gradients, but for tensors that are the same on all ranks: theirs are sums, whose summands differ."""
    from hookcli.table.merged_ranks import SUMMANDS
    from hookcli.table.rank_table import DIVIDED

    def place(row: Row) -> tuple[str, object]:
        return row.fqn, row.get("path")

    own = {place(row): row["shape"] for report in of_rank if report.probe == "activations" for row in report.rows}
    once = {place(row) for row in activations.rows if row["shape"] == own.get(place(row)) != []}
    divided, known = (
        {(s.fqn, s.path) for s in report.skipped if DIVIDED in s.reason} for report in (grads, activations)
    )

    def is_summand(row: Row) -> bool:
        at = place(row)
        return row.get("kind") == "output" and ((at in once and row["shape"] != own[at]) or at in divided - known)

    skipped = [Skipped(row.fqn, SUMMANDS, str(row.get("path") or "")) for row in filter(is_summand, grads.rows)]
    rows = [*filterfalse(is_summand, grads.rows)]
    return replace(grads, rows=rows, skipped=[*grads.skipped, *skipped])


def _slowest_times(parts: Parts) -> Report:
    """The times of each module and part of the step on the slowest rank, and the largest memory of any rank."""
    first = next(iter(parts.values()))
    rows = []
    for by_rank in rows_by_place(parts).values():
        first_row = next(iter(by_rank.values()))
        times = {key: _slowest(row.get(key) for row in by_rank.values()) for key in NAMES if key in first_row.values}
        rows.append(Row({**first_row.values, **times}))
    totals = {key: _slowest(part.totals.get(key) for part in parts.values()) for key in first.totals}
    return replace(first, rows=rows, totals=totals, skipped=common_skipped(parts), meta=common_meta(parts))


def _verdict(parts: Parts) -> Report:
    """The findings of all ranks, each once; findings of some ranks with their numbers."""
    by_place: dict[tuple[str, str], dict[int, Finding]] = {}
    for rank, part in parts.items():
        for finding in part.findings:
            by_place.setdefault((finding.check, finding.fqn), {})[rank] = finding
    findings = []
    for by_rank in by_place.values():
        worst = min(by_rank.values(), key=lambda finding: (*SEVERITIES, finding.severity).index(finding.severity))
        named = "" if len(by_rank) == len(parts) else f" ({ranks_named(list(by_rank))})"
        findings.append(replace(worst, message=worst.message + named))
    first = next(iter(parts.values()))
    judgement = Judgement(findings, common_skipped(parts), first.meta["checks"], though=first.totals.get("though", ""))
    steps = {"steps": first.totals["steps"]} if "steps" in first.totals else {}  # which earlier records lack
    return judgement.report(first.model, common_meta(parts), modules=first.totals["modules"], **steps)
