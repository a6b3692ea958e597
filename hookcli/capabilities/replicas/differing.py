"""Compares the weights of replicas, by the digests that ranks have written after each recorded step."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.record.file.ranks.ranked_record import RankedRecord
from hookcli.record.file.record_lines import RecordedStep, StepEntry
from hookcli.table import agree
from hookcli.table.formatting import counted
from hookcli.table.ranks import ALIKE, differing, ranks_named

_SET = 16
"""The digits of a digest that tell which parameters it is of; ranks with others have nothing to compare."""


def apart(record: object) -> str:
    """How the replicas' weights differ; "" if they don't."""
    return _first(record, wrong=True)


def on_their_own(record: object) -> str:
    """That ranks train weights of their own; "" if they don't."""
    return _first(record, wrong=False)


def _first(record: object, *, wrong: bool) -> str:
    """Loads the first step of each model in which weights differ, and no other."""
    if not isinstance(record, RankedRecord):
        return ""
    models = dict.fromkeys(entry.model for entry in record.entries if entry.phase == "train")
    found = (_of_model(record, model, wrong) for model in models)
    return next(filter(None, found), "")


def _of_model(record: RankedRecord, model: str, wrong: bool) -> str:
    entries = [e for e in record.entries if (e.model, e.phase) == (model, "train") and any(_sets(record, e))]
    differ = {e.step: own for e in entries for own in _sets(record, e) if len(set(own.values())) > 1}
    first = next((entry for entry in entries if entry.step in differ), None)
    ranks = differ[first.step] if first else ()
    steps = {rank: step for rank, step in record.steps_of_ranks(first) if rank in ranks} if first else {}
    sums = {rank: {row.fqn: row["checksum"] for row in step.rows("replicas")} for rank, step in steps.items()}
    every = next(iter(sums.values()), {})
    names = [fqn for fqn in every if len({own.get(fqn) for own in sums.values()}) > 1]
    if not (first and names) or _replicate(list(steps.values()), names) is not wrong:
        return ""
    if not wrong:
        return f"{model}: {ranks_named(list(steps))} train weights of their own: nothing makes their gradients alike"
    step, later = first.step, {entry.step for entry in entries if entry.step >= first.step}
    when = f"from step {step:,} on" if differ.keys() >= later else f"at step {step:,}, not in all later ones"
    if before := [entry.step for entry in entries if entry.step < step]:
        when += f" (they agreed at step {max(before):,})"
    who = differing({rank: tuple(own.get(fqn) for fqn in names) for rank, own in sums.items()})
    of = f"{len(names):,} of {counted(len(every), 'parameter')}"
    return f"{model}: the replicas' weights differ {when}: {who}, in {of}, the first is {names[0]}"


def _sets(record: RankedRecord, entry: StepEntry) -> list[dict[int, str]]:
    """The digests of a step by rank, for each set of parameters that several ranks have."""
    sets: dict[str, dict[int, str]] = {}
    for rank, own in record.held(entry).items():
        if own.weights:
            sets.setdefault(own.weights[:_SET], {})[rank] = own.weights[_SET:]
    return [own for own in sets.values() if len(own) > 1]


def _replicate(steps: Sequence[RecordedStep], names: Sequence[str]) -> bool | None:
    """True if ranks are to hold the same: a wrapper averages their gradients, or they are alike; None if unknown."""
    if all(step.reports[0].meta.get("replicas", 1) > 1 for step in steps):
        return True
    rows = [{r.fqn: r["l2"] for r in step.rows("grads") if r.get("kind") == "parameter"} for step in steps]
    if not all(own.keys() >= {*names} for own in rows):
        return None
    return all(agree(own[fqn], rows[0][fqn], rel_tol=ALIKE) for own in rows for fqn in names)
