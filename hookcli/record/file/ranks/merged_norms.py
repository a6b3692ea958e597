"""Norms of weights, gradients and updates over all ranks, whether these hold shards or whole parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hookcli.record.file.parameter_rows import parameter_rows
from hookcli.record.file.record_lines import RecordedStep
from hookcli.table import Report, Row, Skipped, agree
from hookcli.table.columns import names
from hookcli.table.columns.recorded import NORMS_OF_GROUP
from hookcli.table.merge import gathered
from hookcli.table.ranks import ALIKE, Parts, common_meta, common_skipped, rows_by_place
from hookcli.table.stats import norm, ratio

_OWN_NORMS = "differs between ranks: norms are taken over all ranks together"
_MIXED = "some parameters are sharded and others are not: norms of the whole group are unknown"
_SUMMED = "ranks hold summands of gradients, which are added later: the norm of the gradients is unknown"
_OF_GROUPS = names(NORMS_OF_GROUP)
_OF_GRADIENTS, _OF_PARAMETERS = _OF_GROUPS[:2], _OF_GROUPS[2:]


def merge_updates(parts: Parts) -> Report:
    """The norms of weights and updates: of whole tensors if they are sharded, else of one rank if all agree."""
    rows, remarks = [], []
    for by_rank in rows_by_place(parts).values():
        own, remark = list(by_rank.values()), ""
        if own[0].get("sharded"):
            shards = [row["sharded"] for row in own]
            own = [row for i, row in enumerate(own) if shards[i] is True or shards[i] not in shards[:i]]
        else:
            own, remark = _agreed(own, _OF_PARAMETERS)
        remarks += [Skipped(own[0].fqn, remark)] if remark else []
        rows.append(_together(own, _OF_PARAMETERS))
    return _report(parts, rows, remarks)


def merge_groups(parts: Parts, steps: Mapping[int, RecordedStep], merged: Mapping[str, Report]) -> Report:
    """The norms of parameter groups, likewise; whether parameters are sharded, the rows of `steps` say.

    If only some are, the norms of a lone group come from the `merged` reports of its parameters; the norm of gradients
    before they were clipped is unknown.
    """
    groups: dict[str, dict[int, Row]] = {}
    for rank, part in parts.items():
        for number, row in enumerate(part.rows):
            groups.setdefault(f"parameter group {number} ({row['optimizer']})", {})[rank] = row
    holders, whole = _shard_holders(steps), gathered(parameter_rows(merged.values()).values())
    summed = any(row.get("partial") for _, row in _parameters(steps))
    rows, remarks = [], []
    for name, by_rank in groups.items():
        own, remark = list(by_rank.values()), ""
        if holders is None:
            norms, remark = (whole, "") if len(groups) == 1 else ({}, _MIXED)
            own = [own[0].having({key: norms.get(key) for key in _OF_GROUPS})]
        elif holders:
            own = [by_rank[rank] for rank in holders if rank in by_rank]
        else:
            own, remark = _agreed(own, _OF_PARAMETERS if summed else _OF_GROUPS)
        if summed:
            own = [row.having(dict.fromkeys(_OF_GRADIENTS)) for row in own]
            remark = "; ".join(filter(None, (remark, _SUMMED)))
        remarks += [Skipped("", f"{name}: {remark}")] if remark else []
        rows.append(_together(own, _OF_GROUPS))
    return _report(parts, rows, remarks)


def _shard_holders(steps: Mapping[int, RecordedStep]) -> list[int] | None:
    """For each shard of the parameters a rank that has it; none if every rank has whole parameters.

    None if some parameters are sharded and others are not, or in another way.
    """
    shards: dict[int, set[tuple[int, ...]]] = {rank: set() for rank in steps}
    for rank, row in _parameters(steps):
        if not row.get("partial"):  # a gradient; the parameter's own row says how that is sharded
            shards[rank].add(tuple(row.get("sharded") or ()))
    holders: dict[tuple[int, ...], int] = {}
    for rank, own in shards.items():
        if len(own) > 1:
            return None
        holders.setdefault(next(iter(own), ()), rank)
    return list(holders.values()) if () not in holders else []


def _parameters(steps: Mapping[int, RecordedStep]) -> Iterator[tuple[int, Row]]:
    """The rows of parameters and of their gradients, each with its rank."""
    for rank, step in steps.items():
        for report in step.reports:
            yield from ((rank, r) for r in report.rows if report.probe == "updates" or r.get("kind") == "parameter")


def _agreed(rows: list[Row], norms: Sequence[str]) -> tuple[list[Row], str]:
    """One row if the norms are the same on all ranks; else all rows, with a remark."""
    pairs = [(row.get(key), rows[0].get(key)) for row in rows for key in norms]
    alike = all(a is b if a is None or b is None else agree(a, b, rel_tol=ALIKE) for a, b in pairs)
    return (rows[:1], "") if alike else (rows, _OWN_NORMS)


def _together(rows: Sequence[Row], norms: Sequence[str]) -> Row:
    """The first row with the norms over the finite elements of all rows; NaN where no row has any."""
    values = {key: value for key, value in rows[0].values.items() if key != "sharded"}
    for key in norms:
        known = [row[key] for row in rows if row.get(key) is not None]
        values[key] = norm([each for each in known if not math.isnan(each)] or known) if known else None
    return Row(values | {"ratio": ratio(values["update"], values["weight"])})


def _report(parts: Parts, rows: Sequence[Row], remarks: Iterable[Skipped]) -> Report:
    first = next(iter(parts.values()))
    return replace(first, rows=rows, skipped=[*common_skipped(parts), *remarks], meta=common_meta(parts))
