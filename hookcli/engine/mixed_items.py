"""Follows the items of a batch through a forward, and says why its outputs mix them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise

from torch import nn

from hookcli.engine.item_verdicts import (
    IS_IT_MEANT,
    Meeting,
    Mixture,
    Verdict,
    has_items,
    joined,
    mixing,
    of_groups,
    of_sets,
    sums_by_index,
)
from hookcli.probes.item_paths import Operation, Shape

SAME, CLEAN, MIXED = "same", "clean", "mixed"
"""States of what an operation returns: alike in both runs, with the first item's part alike, or neither."""

_NORMALIZES = frozenset(("sum", "logsumexp", "softmax", "log_softmax", "normalize"))
_REPEATS = frozenset(("expand", "expand_as", "repeat", "tile", "broadcast_to", "repeat_interleave"))
_SHAPE_ONLY = frozenset(("expand_as", "view_as", "reshape_as", "type_as", "new_zeros", "new_ones", "zeros_like"))


class MixedItems:
    """The operations of a forward in order, and the states of what they return."""

    def __init__(self, model: nn.Module, operations: Sequence[Operation], states: Sequence[str], size: int) -> None:
        self._model, self._operations, self._states, self._size = model, operations, states, size
        self._graph = sums_by_index(operations)
        deep = [shape for one in operations[:1] for shape in one.made if len(shape) > 2]
        self._positions = deep[0][1] if deep else 0
        self._mixtures: list[Mixture] = []
        for one, state in zip(operations, states, strict=False):
            self._mixtures.append(self.mixture_of(one) if state == MIXED else Mixture())

    def verdict(self, outputs: Sequence[tuple[int, Shape]]) -> Verdict:
        """Why the items of these outputs are mixed: the first fault, or else the first that may be meant."""
        mixed = [(self._mixtures[n], shape) for n, shape in outputs if self._states[max(n, 0) : n + 1] == [MIXED]]
        verdicts = [v for mixture, shape in mixed if has_items(shape, self._size) for v in of_output(mixture)]
        if not verdicts:
            return Verdict(f"which operator mixes the items was not found; {IS_IT_MEANT}")
        first = next((verdict for verdict in verdicts if verdict.fault), verdicts[0])
        if not first.fault:
            return first
        if alternates(self._operations, self._states, first.scope):
            return in_turns(first.scope)
        of_set = [shape for _, shape in mixed if math.prod(shape) > 1 and not has_items(shape, self._size)]
        return beside_set(first, of_set[0]) if of_set else first

    def mixture_of(self, one: Operation) -> Mixture:
        taken: dict[str, list[tuple[int, Shape]]] = {SAME: [], CLEAN: [], MIXED: []}
        operands = zip(one.operands, one.shapes, strict=True)
        for n, shape in islice(operands, 1) if one.name in _SHAPE_ONLY else operands:
            taken[self._states[n] if n >= 0 else SAME].append((n, shape))
        clean, mixed, others = ([shape for _, shape in taken[state]] for state in (CLEAN, MIXED, SAME))
        meeting = Meeting(one, clean, mixed, others, self._model, self._size, self._positions, self._graph)
        mixture = merged([self._mixtures[n] for n, _ in taken[MIXED]], meeting)
        verdict = None
        if clean and not mixed:
            verdict = mixing(meeting)
        elif clean and (mixture.shared or not (mixture.verdicts or meeting.ends_items())):
            verdict = joined(meeting, mixture)
        if verdict is None:
            return mixture
        return replace(mixture, verdicts=(replace(verdict, scope=one.scope),), shared=False)


def merged(mixtures: Sequence[Mixture], meeting: Meeting) -> Mixture:
    """The mixture that an operation makes of others, or of items that stand by themselves."""
    one = meeting.one
    if not mixtures:
        return Mixture((), one.place, wide=one.elements * meeting.size < meeting.taken())
    return Mixture(
        still_true(meeting, [verdict for mixture in mixtures for verdict in mixture.verdicts]),
        mixtures[0].by,
        any(mixture.learned for mixture in mixtures) or any(len(shape) > 1 for shape in one.weights),
        any(mixture.wide for mixture in mixtures),
        one.name in _REPEATS or all(mixture.shared for mixture in mixtures),
    )


def still_true(meeting: Meeting, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts that hold of what an operation makes of mixtures: no item is spoiled where none stands by itself."""
    if meeting.ends_items():
        verdicts = [verdict for verdict in verdicts if verdict.groups or not verdict.fault]
    verdicts = [of_sets(verdict, meeting) for verdict in verdicts]
    if meeting.reduces():
        verdicts = [of_groups(verdict, meeting.one) for verdict in verdicts]
    if any(verdict.groups and not verdict.fault for verdict in verdicts):
        verdicts = [verdict for verdict in verdicts if not (verdict.groups and verdict.fault)]
    return tuple(dict.fromkeys(verdicts))


def of_output(mixture: Mixture) -> Sequence[Verdict]:
    """The verdicts on an output; one that no item stands beside is a mixture as a whole."""
    if mixture.verdicts:
        return mixture.verdicts
    if mixture.learned and not mixture.wide:
        return [Verdict(f"the output is what layers make of {mixture.by}, over the whole batch; {IS_IT_MEANT}")]
    return [Verdict(f"{mixture.by} takes all items together", fault=True)]


def in_turns(scope: str) -> Verdict:
    """The verdict on a module that alternates."""
    about = "normalises rows and columns in turn, as an assignment by Sinkhorn's algorithm does"
    return Verdict(f"{scope or 'the model'} {about}; {IS_IT_MEANT}")


def beside_set(verdict: Verdict, shape: Shape) -> Verdict:
    """The verdict on a model with another output, of this shape, that has no dimension of the items."""
    about = f"but the output {'x'.join(map(str, shape))} is one for all items, as of a set"
    return Verdict(f"{verdict.sentence}, {about}; {IS_IT_MEANT}")


def alternates(operations: Sequence[Operation], states: Sequence[str], scope: str) -> bool:
    """True if a module normalises a matrix of items over its rows and its columns in turn."""
    of_scope = [
        (one.shapes[0], one.dim % len(one.shapes[0]))
        for one, state in zip(operations, states, strict=False)
        if state != SAME and one.scope == scope and one.name in _NORMALIZES
        if one.dim is not None and one.shapes[0]
    ]
    turns = [a != b for (shape, a), (other, b) in pairwise(of_scope) if shape == other]
    return sum(turns) > 1
