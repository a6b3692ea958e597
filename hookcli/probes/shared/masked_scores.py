"""Scores of attention that a mask has set to -inf: infinities that are meant, and queries that see no key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hookcli.hooks.events import HookEvent
from hookcli.hooks.tensor_origins import memory_of
from hookcli.table import Row
from hookcli.table.marks import MASK
from hookcli.tensors import tree
from hookcli.tensors.chunks import fetched, on_cpu
from hookcli.tensors.non_finite import Kinds, kinds_of

_SOFTMAX = {"softmax", "log_softmax", "logsoftmax", "_softmax", "_log_softmax", "_safe_softmax"}
_NAMED = 3  # queries
Place = tuple[str, int, str]
"""The fqn and the number of a call, and the path of a tensor that it returned."""


@dataclass(slots=True)
class _Softmax:
    """A call of a softmax: its row's place, those that hold its scores, kinds of values, and the hidden queries."""

    place: Place
    scores: list[Place]
    kinds: Tensor
    hidden: Tensor | None


class MaskedScores:
    """Sees the calls of modules and operators as they end, and which scores they hand to a softmax."""

    def __init__(self) -> None:
        self._memory: dict[int, StorageWeakRef] = {}  # held, so that no other memory gets the number
        self._places: dict[int, list[Place]] = defaultdict(list)
        self._calls: list[_Softmax] = []

    def see(self, event: HookEvent) -> None:
        """Note where a call's tensors are; of a softmax, also which of its scores are masked."""
        name = event.operator.name if event.operator else type(event.module).__name__
        if name.lower() in _SOFTMAX:
            self._take(event)
        for path, x in tree.leaves(event.output):
            if memory := memory_of(x):
                self._memory.setdefault(memory, StorageWeakRef(x.untyped_storage()))
                self._places[memory].append((event.fqn, event.call, path))

    def batch_ended(self) -> None:
        """Forget where the tensors of the batch were."""
        self._memory.clear()
        self._places.clear()

    def _take(self, event: HookEvent) -> None:
        (_, x), *_ = [*tree.arguments(event.args, event.kwargs), ("", None)]
        kinds = kinds_of(x) if x is not None and x.dim() else None
        if x is None or kinds is None:
            return
        dim = event.kwargs.get("dim", event.args[1] if len(event.args) > 1 else getattr(event.module, "dim", -1))
        hidden = None
        if not on_cpu(x) or kinds[0, 2]:
            rows = x.detach().amax(dim if isinstance(dim, int) else -1).isneginf()
            hidden = rows.reshape(-1, rows.shape[-1]).any(0) if rows.dim() else rows.reshape(1)
        path = next((path for path, _ in tree.leaves(event.output)), "")
        self._calls.append(_Softmax((event.fqn, event.call, path), [*self._places[memory_of(x)]], kinds, hidden))

    def remarks(self) -> dict[Place, str]:
        """MASK for each place whose infinities are meant; for a softmax, the queries that see no key."""
        remarks: dict[Place, str] = {}
        for call, flags in zip(self._calls, fetched([call.kinds for call in self._calls]), strict=True):
            kinds = Kinds(*flags[0])
            if kinds.negative and not (kinds.nan or kinds.positive):
                remarks |= dict.fromkeys(call.scores, MASK)
                if hidden := _queries(call.hidden):
                    remarks[call.place] = hidden
        return remarks


def with_remarks(rows: Iterable[Row], remarks: Mapping[Place, str]) -> list[Row]:
    """The rows of activations, with the remarks on their places as `scores`."""
    remarked = []
    for row in rows:
        remark = remarks.get((row.fqn, row.get("call") or 0, row.get("path") or ""))
        remarked.append(replace(row, values={**row.values, "scores": remark}) if remark else row)
    return remarked


def _queries(hidden: Tensor | None) -> str:
    """The queries that see no key, in words."""
    numbers = [] if hidden is None else hidden.nonzero().flatten().tolist()
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"query {numbers[0]} sees no key"
    more = f" and {len(numbers) - _NAMED:,} more" if len(numbers) > _NAMED else ""
    return f"queries {', '.join(map(str, numbers[:_NAMED]))}{more} see no key"
