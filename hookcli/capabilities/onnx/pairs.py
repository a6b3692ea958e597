"""Pairs the values of a graph with what the calls of a PyTorch model's modules returned."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from hookcli.capabilities.onnx.graph import Operator
from hookcli.diff.align import NamedPart, align
from hookcli.table import Row
from hookcli.table.names import around, is_within

Place = tuple[str, int, str]
"""A module's fqn in PyTorch, the number of its call, and the path of the tensor in what the call returned."""
Described = tuple[tuple[int, ...], bool]
"""A value's shape, and True for floating-point numbers."""
_LINEAR = re.compile(r"Conv(Transpose)?\dd|Linear")
_FOLDED = "folded into the batch norm after it, whose output {} has"
_NO_OPERATOR = (
    "{} has no operator of it: the exporter left it out, merged it with another, or put it in a loop or branch"
)
_UNKNOWN_CALL = "called {} times, and {} does not tell which of its operators are of which call"
_NO_VALUE = "no value of {} in its place has its shape"


class Pairing:
    """The pairing of the graph of `file` with the calls of a model: rows of what these returned, in their order.

    `alignment` has the modules that belong together, the graph's first; `values` the graph's values by place, once
    `pair` has found them; and `reasons` why other modules have none.
    """

    def __init__(self, file: str, operators: Sequence[Operator], outputs: Sequence[str], calls: Sequence[Row]) -> None:
        self._file, self._operators, self._outputs, self.calls = file, operators, outputs, calls
        types = {row.fqn: row["type"] for row in calls}
        alike = {fqn.rpartition(".")[2]: kind for fqn, kind in types.items()}
        names = dict.fromkeys(fqn for one in operators if one.scope for fqn in (*[*around(one.scope)][::-1], one.scope))
        parts = [NamedPart(fqn, types.get(fqn) or alike.get(fqn.rpartition(".")[2], "")) for fqn in {"": None} | names]
        self.alignment = align(parts, [NamedPart(*item) for item in types.items()])
        self.values: dict[Place, str] = {}
        self.reasons: dict[str, str] = {}
        there = self.alignment.in_b
        self._scopes = [there.get(one.scope, one.scope) if one.scope else one.scope for one in operators]
        self._note_folded()
        self._users: dict[str, list[int]] = {}
        for number, one in enumerate(operators):
            for name in one.inputs:
                self._users.setdefault(name, []).append(number)
        self._called = [*self._calls()]

    def _note_folded(self) -> None:
        """Give the operators of a convolution, which a batch norm was folded into, to the batch norm."""
        scopes = {*self._scopes}
        containers = {owner for row in self.calls for owner in around(row.fqn)}
        for before, row in pairwise(row for row in self.calls if row.fqn not in containers):
            both = _LINEAR.fullmatch(before["type"]) and row["type"].startswith("BatchNorm")
            if both and len(scopes & {before.fqn, row.fqn}) == 1:
                self._scopes = [row.fqn if scope == before.fqn else scope for scope in self._scopes]
                self.reasons[before.fqn] = _FOLDED.format(self._file)

    def candidates(self) -> list[str]:
        """The values that may be what modules returned."""
        values = (name for _, blocks in self._called for block in blocks for name in self._leaving(block))
        return [*dict.fromkeys([*self._outputs, *values])]

    def _calls(self) -> Iterator[tuple[list[list[Row]], list[list[int]]]]:
        """For each module the rows of each call, and the numbers of the operators of each call, none if unknown."""
        for fqn, own in groupby(sorted(self.calls, key=lambda row: row.fqn), lambda row: row.fqn):
            calls = [[*rows] for _, rows in groupby(own, lambda row: row["call"])]
            known = enumerate(self._scopes)
            inner = [n for n, scope in known if not fqn or (scope and (scope == fqn or is_within(scope, fqn)))]
            size, left = divmod(len(inner), len(calls))
            blocks = [inner[n * size : (n + 1) * size] for n in range(len(calls))]
            if not inner:
                self.reasons.setdefault(fqn, _NO_OPERATOR.format(self._file))
            elif left or len({tuple(self._operators[n].op for n in block) for block in blocks}) > 1:
                self.reasons.setdefault(fqn, _UNKNOWN_CALL.format(len(calls), self._file))
            else:  # each call has the same operators in the same order
                yield calls, blocks

    def _leaving(self, block: Collection[int]) -> list[str]:
        """The values of a call's operators that others use, or that the model returns."""
        inside = set(block)
        if len(inside) == len(self._operators):
            return [*self._outputs]
        made = [name for number in block for name in self._operators[number].outputs]
        return [name for name in made if name in self._outputs or not inside.issuperset(self._users.get(name, inside))]

    def pair(self, described: Mapping[str, Described]) -> None:
        """Pair by place, shape and kind of numbers. A value that is alone in its place is paired whatever its shape."""
        for calls, blocks in self._called:
            for rows, block in zip(calls, blocks, strict=True):
                leaving = [name for name in self._leaving(block) if name in described]
                wanted = [(tuple(row["shape"]), "float" in row["dtype"]) for row in rows]
                for kind in dict.fromkeys(wanted):
                    these = [row for row, own in zip(rows, wanted, strict=True) if own == kind]
                    fitting = [name for name in leaving if described[name] == kind or len(leaving) == len(rows) == 1]
                    for row, name in zip(these, fitting[-len(these) :], strict=False):
                        self.values[row.fqn, row["call"], row["path"]] = name
        for row in self.calls:
            if (row.fqn, row["call"], row["path"]) not in self.values:
                self.reasons.setdefault(row.fqn, _NO_VALUE.format(self._file))
