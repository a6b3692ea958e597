"""Compares the weights of replicas, by the digests that ranks have written after each recorded step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

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
    """That ranks train their own weights; "" if they don't."""
    return _first(record, wrong=False)


def _first(record: object, *, wrong: bool) -> str:
    """Loads the first step of each model in which weights differ, and no other."""
    if not isinstance(record, RankedRecord):
        return ""
    models = dict.fromkeys(entry.model for entry in record.entries if entry.phase == "train")
    partings = (_Parting.of(record, model) for model in models)
    return next(
        (one.apart() if wrong else one.on_their_own() for one in partings if one and one.replicate is wrong), ""
    )


class _Parting:
    """The first of a model's recorded steps after which ranks have other weights, and under which `names`."""

    @classmethod
    def of(cls, record: RankedRecord, model: str) -> _Parting | None:
        """None if the weights are the same in all steps."""
        entries = [e for e in record.entries if (e.model, e.phase) == (model, "train") and any(_sets(record, e))]
        differ = {e.step: own for e in entries for own in _sets(record, e) if len(set(own.values())) > 1}
        first = next((entry for entry in entries if entry.step in differ), None)
        if first is None:
            return None
        steps = {rank: step for rank, step in record.steps_of_ranks(first) if rank in differ[first.step]}
        parting = cls(model, first.step, [entry.step for entry in entries], differ.keys(), steps)
        return parting if parting.names else None

    def __init__(
        self, model: str, step: int, steps: Sequence[int], differ: Set[int], ranks: Mapping[int, RecordedStep]
    ) -> None:
        """`steps`: all that were recorded; `differ`: those in which weights do; `ranks`: the first of these by rank."""
        self._model, self._step, self._steps, self._differ = model, step, steps, differ
        self._sums = {rank: {row.fqn: row["checksum"] for row in own.rows("replicas")} for rank, own in ranks.items()}
        self._every = next(iter(self._sums.values()), {})
        self.names = [fqn for fqn in self._every if len({own.get(fqn) for own in self._sums.values()}) > 1]
        # Ranks are to hold the same if a wrapper averages their gradients, or if these are alike; None if unknown.
        self.replicate: bool | None = None
        gradients = [{row.fqn: row["l2"] for row in own.parameter_grads()} for own in ranks.values()]
        if all(own.reports[0].meta.get("replicas", 1) > 1 for own in ranks.values()):
            self.replicate = True
        elif all(own.keys() >= {*self.names} for own in gradients):
            alike = (agree(own[fqn], gradients[0][fqn], rel_tol=ALIKE) for own in gradients for fqn in self.names)
            self.replicate = all(alike)

    def on_their_own(self) -> str:
        ranks = ranks_named([*self._sums])
        return f"{self._model}: {ranks} train their own weights: nothing makes their gradients alike"

    def apart(self) -> str:
        step = self._step
        always = self._differ >= {number for number in self._steps if number >= step}
        when = f"from step {step:,} on" if always else f"at step {step:,}, not in all later ones"
        if before := [number for number in self._steps if number < step]:
            when += f" (they agreed at step {max(before):,})"
        who = differing({rank: tuple(own.get(fqn) for fqn in self.names) for rank, own in self._sums.items()})
        of = f"{len(self.names):,} of {counted(len(self._every), 'parameter')}"
        return f"{self._model}: the replicas' weights differ {when}: {who}, in {of}, the first is {self.names[0]}"


def _sets(record: RankedRecord, entry: StepEntry) -> list[dict[int, str]]:
    """The digests of a step by rank, for each set of parameters that several ranks have."""
    sets: dict[str, dict[int, str]] = {}
    for rank, own in record.held(entry).items():
        if own.weights:
            sets.setdefault(own.weights[:_SET], {})[rank] = own.weights[_SET:]
    return [own for own in sets.values() if len(own) > 1]
