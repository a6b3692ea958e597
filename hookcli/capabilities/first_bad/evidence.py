"""Evidence for the search of the first non-finite value: what modules received, and which rows of a batch are bad."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.tensors import tree
from hookcli.tensors.chunks import PendingFigures, fetched, on_cpu
from hookcli.tensors.non_finite import Kinds, bad_rows, kinds_of
from hookcli.tensors.stats import Reducer, resolve
from hookcli.tensors.weak import WeakIds

ReceivedKind = tuple[str, str, str]
"""The fqn of a module, the path of a tensor that it received, and a kind of non-finite values."""
_NAMED = 3  # rows of a batch


class Received(NamedTuple):
    """NaN and infinities that a module received, and that no module had returned."""

    nan: int
    inf: int
    remarks: list[str]


class _Tensor(NamedTuple):
    """A tensor that a module received in the call that `began` as this one; not kept on the CPU if it was finite."""

    began: int
    path: str
    figures: PendingFigures
    kinds: Tensor | None
    rows: Tensor | None


class Evidence:
    """Looks at what a step's modules receive and return, and reads accelerators only when asked. `reduce` measures."""

    def __init__(self, reduce: Reducer) -> None:
        self._reduce = reduce
        self._received: dict[str, list[_Tensor]] = {}
        self._returned: WeakIds[Tensor, bool] = WeakIds()
        self._rows: dict[tuple[str, str, int, str], Tensor] = {}
        self._of_model: dict[tuple[int, str], Tensor] = {}  # kinds of what the model returned

    def attach(self, session: HookSession, *, gradients: bool) -> None:
        """Register hooks before and after each module, after those that measure what modules return."""
        session.forward_pre(self._enter)
        session.forward(self._leave)
        if gradients:
            session.output_grad(self._arrive)

    def _enter(self, event: HookEvent) -> None:
        """Measure what a module receives, but for what another one returned, which is measured already."""
        for path, x in tree.arguments(event.args, event.kwargs):
            if x not in self._returned and (figures := self._bad_figures(x)):
                local = tree.local(x)
                seen = _Tensor(event.index, path, figures, kinds_of(local), bad_rows(local))
                self._received.setdefault(event.fqn, []).append(seen)

    def _leave(self, event: HookEvent) -> None:
        for path, x in tree.leaves(event.output):
            self._returned[x] = True
            self._take_rows("output", event, path, x)
            if not event.fqn and (kinds := kinds_of(tree.local(x))) is not None:
                self._of_model[event.index, path] = kinds

    def _arrive(self, event: HookEvent) -> None:
        if event.grad is not None and not event.inner:
            self._take_rows("gradient", event, event.path, event.grad)

    def _take_rows(self, what: str, event: HookEvent, path: str, x: Tensor) -> None:
        bad = not on_cpu(x) or self._bad_figures(x)
        if bad and (rows := bad_rows(tree.local(x))) is not None:
            self._rows[what, event.fqn, event.index, path] = rows

    def _bad_figures(self, x: Tensor) -> PendingFigures | None:
        """The figures of a tensor with NaN or infinities; on an accelerator, where that is unknown, of any."""
        with suppress(RuntimeError, TypeError):  # a tensor of a kind that can't be reduced
            figures = self._reduce(x)
            if not on_cpu(x) or (stats := resolve([figures])[0]).nan or stats.inf:
                return figures
        return None

    def take_usual(self) -> Iterator[ReceivedKind]:
        """The places where modules received such values and returned finite ones. Forgets what was seen so far."""
        tensors = [(fqn, x.path, x.kinds) for fqn, part in self._received.items() for x in part if x.kinds is not None]
        for (fqn, path, _), flags in zip(tensors, fetched([kinds for _, _, kinds in tensors]), strict=True):
            yield from ((fqn, path, kind) for kind in Kinds(*flags[0]).present())
        self._received.clear()
        self._rows.clear()
        self._of_model.clear()

    def received(self, fqn: str, index: int, usual: Collection[ReceivedKind]) -> Received | None:
        """The NaN and infinities that a module received until this call began; None but for masks and `usual` ones."""
        tensors = [x for x in self._received.get(fqn, []) if x.began <= index]
        nan, inf, remarks = 0, 0, list[str]()
        for x, stats in zip(tensors, resolve([x.figures for x in tensors]), strict=True):
            kinds = Kinds(*fetched([x.kinds])[0][0]) if x.kinds is not None else None
            if not (stats.nan or stats.inf) or (kinds and kinds.is_mask and not kinds.hides_row):
                continue
            present = kinds.present() if kinds else ("nan",)
            if new := [kind for kind in present if (fqn, x.path, kind) not in usual]:
                nan += stats.nan * ("nan" in new)
                inf += stats.inf
                remarks += [_HIDDEN] if kinds and kinds.hides_row else _named(x.rows)
        return Received(nan, inf, remarks) if nan or inf else None

    def returned_positive(self, index: int, path: str) -> bool:
        """True if what the model returned in this call holds +inf. Waits for an accelerator."""
        kinds = self._of_model.get((index, path))
        return kinds is not None and Kinds(*fetched([kinds])[0][0]).positive

    def rows(self, what: str, fqn: str, index: int, path: str) -> list[str]:
        """A remark on the rows of a batch that are bad in what a module returned, or its gradient; none if all are."""
        return _named(self._rows.get((what, fqn, index, path)))


def _named(rows: Tensor | None) -> list[str]:
    bad = rows.nonzero().flatten().tolist() if rows is not None else []
    if rows is None or not 0 < len(bad) < len(rows):
        return []
    if bad[_NAMED:]:
        return [f"in {len(bad):,} of {len(rows):,} rows (first dimension), of which the first is row {bad[0]}"]
    shown = f"row{'s' * (len(bad) > 1)} {', '.join(map(str, bad))}"
    return [f"only in {shown} of {len(rows):,} (first dimension, counted from 0)"]


_HIDDEN = "a row of a mask is -inf only, which softmax turns into NaN"
