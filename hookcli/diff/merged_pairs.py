"""Merges the compared tensors of one batch after the other, exactly and in constant memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hookcli.diff.tensors import MeasuredPair
from hookcli.table.columns import place_of
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.merge import concatenated

Compared = MeasuredPair | Mapping[str, Any]
"""A pair of tensors, or the values of a row that has no figures and says why."""
_PARAMETER = "grad"  # the kind of gradients that do not grow with the batch


class MergedPairs:
    """Compared tensors of several batches by their place: their discrepancy is that of all batches, concatenated."""

    def __init__(self) -> None:
        self._places: dict[Hashable, Compared] = {}

    def add(self, found: Iterable[Compared]) -> None:
        """Take in a batch. A place that could not be compared in one batch has no figures."""
        for item in found:
            values = item.values if isinstance(item, MeasuredPair) else item
            in_b = values.get("change") == "added"  # under B's name, which another place may have in A
            key = (in_b, *place_of(values))
            known = self._places.setdefault(key, item)
            if known is not item and isinstance(known, MeasuredPair):
                self._places[key] = _merged(known, item) if isinstance(item, MeasuredPair) else item

    def found(self) -> list[Compared]:
        """All places, those of the first batch first."""
        return list(self._places.values())


def _merged(one: MeasuredPair, other: MeasuredPair) -> MeasuredPair:
    values = dict(one.values)
    if values["kind"] != _PARAMETER:
        values["shape"] = concatenated(one.values["shape"], other.values["shape"])
    pairs = zip(one.received, other.received, strict=False)
    received = [Discrepancy.merge(pair) for pair in pairs]
    complete = one.complete and other.complete
    found = Discrepancy.merge([one.found, other.found])
    return replace(one, values=values, found=found, received=received, complete=complete)
