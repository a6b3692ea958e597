"""Ranks and singular values of what modules return, of weights, and of the updates of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hookcli.hooks.events import HookEvent
from hookcli.hooks.parts import selects_parameter
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.dead_units import FEATURES_LAST, FEATURES_SECOND
from hookcli.probes.shared.unmeasured import unmeasured
from hookcli.table import Row, Skipped
from hookcli.table.columns.layouts import SPECTRUM
from hookcli.table.formatting import number
from hookcli.table.names import in_words
from hookcli.table.rank_collapse import collapsed, in_short
from hookcli.tensors import tree
from hookcli.tensors.spectra import FLOOR, WIDEST, Figures, Matrix
from hookcli.tensors.torch_private import version
from hookcli.tensors.weak import WeakIds

_MOST = 1 << 30  # bytes of all matrices together
_WIDE = f"more than {WIDEST:,} tokens and features: its eigenvalues would take too long"
_WIDE_WEIGHT = (
    f"more than {WIDEST:,} rows and columns: `hookcli weights MODEL --spectral` has its largest singular value"
)
_FULL = f"the matrices of modules before it take {_MOST >> 30} GiB: narrow with --match"
_NO_MATRIX = "no matrix of numbers in this process's memory (whole numbers, one dimension, sharded, quantized ...)"
_EMPTY = "all zero, or with NaN or Inf"
_REMEMBERED = 16  # sums of matrices, which a module shares with those around it
_Found = Matrix | str
"""A matrix, or the reason why there is none."""


@dataclass(slots=True)
class _Place:
    """All calls of a module so far: what it returned, and received."""

    index: int
    type: str | None
    output: _Found
    received: _Found
    calls: int = 1


class SpectrumProbe(Probe):
    """A row per tensor that a module returned, over all calls, per matrix of weights, and per update of one.

    An output is a matrix of tokens by features: all dimensions but that of features count as tokens, such as the places
    of an image. A weight's dimensions after the first are its columns. Figures of calls and batches are those of all
    rows together. `of`: "outputs" or "weights" alone.
    """

    name = "spectrum"
    columns = SPECTRUM
    merges_batches = True
    inside_compiled = True
    in_steps = True
    sees_updates = True

    def __init__(self, *, of: str | None = None) -> None:
        self._of = of
        self._places: dict[tuple[str, str], _Place] = {}
        self._received: dict[tuple[str, int], _Found] = {}
        self._seen: WeakIds[Tensor, tuple[int, Matrix]] = WeakIds()
        self._sums: dict[tuple[int, int], tuple[Matrix, Matrix, Matrix]] = {}
        self._updates: dict[str, _Found] = {}
        self._features: tuple[int, bool] = 0, False  # how many the last layer returned, and whether in the last place
        self._made: list[Row] | None = None
        self._unfit: dict[Skipped, None] = {}

    def attach(self, session: HookSession) -> None:
        self.session = session
        if self._of != "weights":
            session.forward_pre(self._enter)
            session.forward(self._leave)

    def _enter(self, event: HookEvent) -> None:
        found = (self._matrix(x) for _, x in tree.arguments(event.args, event.kwargs))
        received: _Found = next((one for one in found if isinstance(one, Matrix)), _NO_MATRIX)
        self._received[event.fqn, event.call] = received

    def _leave(self, event: HookEvent) -> None:
        module = event.module
        if isinstance(module, (*FEATURES_LAST, *FEATURES_SECOND)):
            last = isinstance(module, FEATURES_LAST)
            sizes = [x.shape[-1 if last else 1] for _, x in tree.leaves(event.output) if x.dim() > 1]
            norm = module.normalized_shape[-1:] if isinstance(module, nn.LayerNorm) else ()  # perhaps of images
            self._features = next(iter((*norm, *sizes)), 0), last
        received = self._received.pop((event.fqn, event.call), _NO_MATRIX)
        for path, x in tree.leaves(event.output):
            output = self._matrix(x)
            if place := self._places.get((event.fqn, path)):
                place.calls += 1
                place.output, place.received = self._sum(place.output, output), self._sum(place.received, received)
            else:
                kind = tree.type_text(module) if module is not None else None
                self._places[event.fqn, path] = _Place(event.index, kind, output, received)

    def _sum(self, one: _Found, other: _Found) -> _Found:
        """The rows of both. Modules that have the same ones share the sum."""
        if isinstance(one, str) or isinstance(other, str):
            return one if isinstance(one, str) else other
        if one.columns != other.columns:
            return "the number of features differs from call to call"
        if min(one.count + other.count, one.columns) > WIDEST:
            return _WIDE
        key = id(one), id(other)
        if key not in self._sums:
            self._sums[key] = one, other, one + other
            for old in list(self._sums)[:-_REMEMBERED]:
                del self._sums[old]
        return self._sums[key][2]

    def _matrix(self, x: Tensor) -> _Found:
        """The tensor as a matrix of tokens by features, made once for all modules that hand it on as it is."""
        if x.dim() < _SIDES or not x.is_floating_point() or not tree.is_plain(x) or not x.numel() or tree.layout_of(x):
            return _NO_MATRIX
        known = None if x.is_inference() else self._seen.get(x)
        if known and known[0] == version(x):
            return known[1]
        dim = self._features_of(x.shape)
        flat = x.detach().movedim(dim, -1).reshape(-1, x.shape[dim])
        if min(flat.shape) > WIDEST:
            return _WIDE
        held = {id(m): m for place in self._places.values() for m in (place.output, place.received)}
        if sum(m.nbytes for m in held.values() if isinstance(m, Matrix)) > _MOST:
            return _FULL
        matrix = Matrix.of(flat, items=x.shape[0] if x.dim() > _SIDES else 1)
        if not x.is_inference():
            self._seen[x] = version(x), matrix
        return matrix

    def _features_of(self, shape: Sequence[int]) -> int:
        """The dimension of features: that of the last layer, unless a permutation has moved as many to another one."""
        size, last = self._features
        if last:
            return 1 if shape[1] == size != shape[-1] else -1
        image = len(shape) > _SIDES + 1
        moved = shape[-1] == size != shape[1] and not (image and shape[-1] == shape[-2])  # else joined square images
        return -1 if moved or not (image or shape[1] == size) else 1

    def batch_ended(self) -> None:
        """Do nothing: calls of further batches merge as those of one do."""

    def updated(self, fqn: str, before: Tensor, now: Tensor) -> None:
        if now.dim() >= _SIDES:
            self._updates[fqn] = _of_weight(now - before)

    def rows(self) -> list[Row]:
        if self._made is None:
            figures: dict[int, Figures | None] = {}
            self._made = [*self._of_outputs(figures), *(self._of_weights() if self._of != "outputs" else ())]
            for row in collapsed(self._made):
                self._made[self._made.index(row)] = Row({**row.values, "note": in_short(row)})
        return self._made

    def _of_outputs(self, figures: dict[int, Figures | None]) -> Iterator[Row]:
        """Rows in the order in which modules were entered; `figures`, by id, are those of the matrices so far."""
        for (fqn, path), place in sorted(self._places.items(), key=lambda item: item[1].index):
            for matrix in (place.output, place.received):
                if isinstance(matrix, Matrix) and id(matrix) not in figures:
                    figures[id(matrix)] = matrix.figures()
            received = figures.get(id(place.received))
            values: dict[str, Any] = {"fqn": fqn, "kind": "output", "type": place.type, "calls": place.calls}
            values |= {"index": place.index, "path": path}
            values["input_rank"] = received.effective_rank if received else None
            values["input_spread"] = received.token_spread if received else None
            yield from self._row(values, place.output, figures.get(id(place.output)))

    def _of_weights(self) -> Iterator[Row]:
        model = self.session.model
        for index, (fqn, parameter) in enumerate(model.named_parameters()):
            if parameter.dim() < _SIDES or not selects_parameter(self.session.select, model, fqn):
                continue
            type_ = tree.type_text(model.get_submodule(fqn.rpartition(".")[0]))
            for kind, matrix in (("parameter", _of_weight(parameter)), ("update", self._updates.get(fqn))):
                if matrix is not None:
                    shape = list(parameter.flatten(1).shape)
                    values = {"fqn": fqn, "kind": kind, "type": type_, "index": index, "path": "", "shape": shape}
                    yield from self._row(values, matrix, None if isinstance(matrix, str) else matrix.figures())

    def _row(self, values: dict[str, Any], matrix: _Found, figures: Figures | None) -> Iterator[Row]:
        if isinstance(matrix, str) or figures is None:
            reason = matrix if isinstance(matrix, str) else _EMPTY
            what = "the update: " if values["kind"] == "update" else ""
            self._unfit[Skipped(values["fqn"], what + reason, values["path"])] = None
            return
        sides = {"shape": [matrix.count, matrix.columns], "dimensions": matrix.dimensions}
        yield Row(sides | values | figures._asdict())

    def totals(self) -> Mapping[str, object]:
        """Return the verdict: where the rank collapses, else the lowest rank of an output, or of a weight."""
        if found := collapsed(self.rows()):
            return {"verdict": f"{in_words(found[0].fqn)}: {in_short(found[0])} (HK051)"}
        outputs = [row for row in self.rows() if row["kind"] == "output" and row["dimensions"] > 1]
        rows = outputs or [row for row in self.rows() if row["dimensions"] > 1]
        if not rows:
            return {"verdict": "no matrix of several rows and columns was seen"}
        low = min(rows, key=lambda row: row["effective_rank"] / row["dimensions"])
        rank = f"{number(low['effective_rank'])} of {low['dimensions']:,}, at {in_words(low.fqn)}"
        return {"verdict": f"no rank collapses; lowest: {rank}" if outputs else f"lowest rank of a weight: {rank}"}

    def skipped(self) -> list[Skipped]:
        """Return what has no rows, with the reasons, once these are known."""
        self.rows()
        return [*self._unfit, *(unmeasured(self.session) if self._of != "weights" else ())]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        return [f"singular values below {FLOOR:g} of the largest count as 0"] if rows else []


_SIDES = 2


def _of_weight(x: Tensor) -> _Found:
    """A weight, or its change, as a matrix with its smaller side as columns: ranks are those of either way round."""
    if not x.is_floating_point() or not tree.is_plain(x) or not x.numel() or tree.shard_of(x):
        return _NO_MATRIX
    flat = x.detach().flatten(1)
    if min(flat.shape) > WIDEST:
        return _WIDE_WEIGHT
    return Matrix.of(flat if flat.shape[0] > flat.shape[1] else flat.T)
