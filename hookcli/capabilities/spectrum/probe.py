"""Ranks and singular values of outputs, of weights, and of their updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from typing import Any

from torch import Tensor, nn

from hookcli.capabilities.spectrum.layout import COLUMNS, WEIGHTS
from hookcli.capabilities.spectrum.rank_collapse import collapsed, in_short
from hookcli.capabilities.spectrum.spectra import FLOOR, NOT_FINITE, WIDEST, Figures, Matrix
from hookcli.hooks.events import HookEvent
from hookcli.hooks.parts import selects_parameter
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.probes.shared.dead_units import FEATURES_LAST, FEATURES_SECOND
from hookcli.probes.shared.unmeasured import unmeasured
from hookcli.table import Report, Row, Skipped
from hookcli.table.formatting import number
from hookcli.table.meta import Meta
from hookcli.table.names import in_words, is_within
from hookcli.tensors import tree
from hookcli.tensors.torch_private import version
from hookcli.tensors.weak import WeakIds

_MOST = 1 << 30  # bytes of all matrices together
_ONE_VALUE = "`hookcli weights MODEL --spectral` has a weight's largest singular value"  # another word
_WIDE = f"more than {WIDEST:,} rows and columns ({_ONE_VALUE})"
_FULL = f"the matrices of modules before it take {_MOST >> 30} GiB: narrow with --match"
_NO_MATRIX = "no matrix of numbers in this process's memory (whole numbers, one dimension, sharded, quantized ...)"
_SIDES = 2
_Found = Matrix | str
"""A matrix, or the reason why there is none."""


@dataclass(slots=True)
class _Place:
    """All calls of a module so far: the tensor that it returned, and the one that it received."""

    index: int
    type: str
    output: _Found
    received: _Found
    calls: int = 1


class SpectrumProbe(Probe):
    """A row per tensor that a module returned, over all calls, per matrix of weights, and per update of one.

    An output is a matrix of tokens by features: all dimensions but the features' count as tokens, such as the places
    of an image. A weight's dimensions after the first are its columns. `of`: "outputs" or "weights" alone.
    """

    name = "spectrum"
    columns = COLUMNS
    merges_batches = inside_compiled = in_steps = True

    def __init__(self, *, of: str | None = None) -> None:
        self._of = of
        self._places: dict[tuple[str, str], _Place] = {}
        self._received: dict[tuple[str, int], _Found] = {}
        self._seen: WeakIds[Tensor, tuple[int, Matrix]] = WeakIds()
        self._added = lru_cache(16)(Matrix.__add__)  # which a module shares with those around it
        self._updates: dict[str, _Found] = {}
        self._features: tuple[int, bool] = 0, False  # how many the last layer returned, and whether in the last place
        self._made: list[Row] | None = None
        self._unfit: dict[Skipped, None] = {}

    def attach(self, session: HookSession) -> None:
        self.session = session
        if self._of != WEIGHTS:
            session.forward_pre(self._enter)
            session.forward(self._leave)

    def _enter(self, event: HookEvent) -> None:
        matrices = (self._matrix(x) for _, x in tree.arguments(event.args, event.kwargs))
        received: _Found = next((one for one in matrices if isinstance(one, Matrix)), _NO_MATRIX)
        self._received[event.fqn, event.call] = received

    def _leave(self, event: HookEvent) -> None:
        module = event.module
        assert module is not None
        if isinstance(module, (*FEATURES_LAST, *FEATURES_SECOND)):
            last = isinstance(module, FEATURES_LAST)
            sizes = [tree.shape_of(x)[-1 if last else 1] for _, x in tree.leaves(event.output) if x.dim() > 1]
            norm = module.normalized_shape[-1:] if isinstance(module, nn.LayerNorm) else ()  # perhaps of images
            self._features = next(iter((*norm, *sizes)), 0), last
        received = self._received.pop((event.fqn, event.call), _NO_MATRIX)
        for path, x in tree.leaves(event.output):
            output = self._matrix(x)
            if place := self._places.get((event.fqn, path)):
                place.calls += 1
                place.output, place.received = self._sum(place.output, output), self._sum(place.received, received)
            else:
                self._places[event.fqn, path] = _Place(event.index, tree.type_text(module), output, received)

    def _sum(self, one: _Found, other: _Found) -> _Found:
        """The rows of both."""
        if isinstance(one, str) or isinstance(other, str):
            return one if isinstance(one, str) else other
        if one.columns != other.columns:
            return "the number of features differs from call to call"
        if min(one.count + other.count, one.columns) > WIDEST:
            return _WIDE
        return self._added(one, other)

    def _matrix(self, x: Tensor) -> _Found:
        """The tensor as a matrix of tokens by features, made once for all modules that hand it on as it is."""
        if x.dim() < _SIDES or not x.is_floating_point() or not tree.is_plain(x) or not x.numel() or tree.layout_of(x):
            return _NO_MATRIX
        lasting = not x.is_inference() and not self.session.inside_compiled  # programs reuse memory, unseen by versions
        known = self._seen.get(x) if lasting else None
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
        if lasting:
            self._seen[x] = version(x), matrix
        return matrix

    def _features_of(self, shape: Sequence[int]) -> int:
        """The dimension of features: the last layer's, unless a permutation has moved as many to another one."""
        size, last = self._features
        if last:
            return 1 if shape[1] == size != shape[-1] else -1
        image = len(shape) > _SIDES + 1
        moved = shape[-1] == size != shape[1] and not (image and shape[-1] == shape[-2])  # else joined square images
        return -1 if moved or not (image or shape[1] == size) else 1

    def batch_ended(self) -> None:
        """Do nothing: calls of several batches merge like the calls of one."""

    def updated(self, fqn: str, before: Tensor, now: Tensor) -> None:
        if now.dim() >= _SIDES:
            self._updates[fqn] = _of_weight(now - before)

    def report(self, model: str, meta: Meta) -> Report:
        """Return the report of everything so far: a program that watches its model may ask again later."""
        self._made, self._unfit = None, {}
        return super().report(model, meta)

    def rows(self) -> list[Row]:
        if self._made is None:
            model = self.session.model
            self._made = [*self._of_outputs()]
            parameters = model.named_parameters() if self._of != "outputs" else ()
            for index, (fqn, parameter) in enumerate(parameters):
                if parameter.dim() >= _SIDES and selects_parameter(self.session.select, model, fqn):
                    type_ = tree.type_text(model.get_submodule(fqn.rpartition(".")[0]))
                    values = {"fqn": fqn, "kind": "parameter", "type": type_, "index": index, "path": ""}
                    values["shape"] = list(parameter.flatten(1).shape)
                    self._made += self._row(values, _of_weight(parameter))
                    if fqn in self._updates:
                        self._made += self._row(values | {"kind": "update"}, self._updates[fqn])
            for row in collapsed(self._made):
                self._made[self._made.index(row)] = Row({**row.values, "note": in_short(row)})
        return self._made

    def _of_outputs(self) -> Iterator[Row]:
        """Rows in the order in which modules were entered."""
        figures = cache(Matrix.figures)
        for (fqn, path), place in sorted(self._places.items(), key=lambda item: item[1].index):
            values: dict[str, Any] = {"fqn": fqn, "kind": "output", "type": place.type, "calls": place.calls}
            values |= {"index": place.index, "path": path, "input_rank": None, "input_spread": None}
            if isinstance(place.received, Matrix) and isinstance(received := figures(place.received), Figures):
                values |= {"input_rank": received.effective_rank, "input_spread": received.token_spread}
            yield from self._row(values, place.output, figures)

    def _row(
        self, values: dict[str, Any], matrix: _Found, figures: Callable[[Matrix], Figures | str] = Matrix.figures
    ) -> Iterator[Row]:
        if isinstance(matrix, Matrix) and isinstance(measured := figures(matrix), Figures):
            shape = {"shape": [matrix.count, matrix.columns], "dimensions": matrix.dimensions}
            yield Row(shape | values | measured._asdict())
        else:
            reason = "the update: " * (values["kind"] == "update") + (matrix if isinstance(matrix, str) else measured)
            self._unfit[Skipped(values["fqn"], reason, values["path"])] = None

    def totals(self) -> Mapping[str, object]:
        """Return the verdict: where NaN begins, or the rank collapses; else the lowest rank of an output or weight."""
        rows = self.rows()
        broken = [item.fqn for item in self._unfit if item.reason == NOT_FINITE]
        if broken:
            first = reduce(lambda around, fqn: fqn if is_within(fqn, around) else around, broken)
            return {"verdict": f"NaN or Inf in {in_words(first)}"}
        if noted := next((row for row in rows if row.get("note")), None):
            return {"verdict": f"{in_words(noted.fqn)}: {noted['note']} (HK051)"}
        several = [row for row in rows if row["dimensions"] > 1]
        rows = [row for row in several if row["kind"] == "output"] or several
        if not rows:
            return {"verdict": "no matrix of several rows and columns was seen"}
        low = min(rows, key=lambda row: row["effective_rank"] / row["dimensions"])
        rank = f"{number(low['effective_rank'])} of {low['dimensions']:,}, at {in_words(low.fqn)}"
        return {"verdict": f"{'no rank collapses; ' * (low['kind'] == 'output')}lowest effective rank: {rank}"}

    def skipped(self) -> list[Skipped]:
        """Return everything without a row, with the reason."""
        self.rows()
        return [*self._unfit, *(unmeasured(self.session) if self._of != WEIGHTS else ())]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        floor = f"singular values below {FLOOR:g} of the largest count as 0"
        return [floor, "a row for several blocks shows the block with the lowest effective rank"] if rows else []


def _of_weight(x: Tensor) -> _Found:
    """A weight, or its change, as a matrix with its smaller side as columns: ranks are the same either way round."""
    if not x.is_floating_point() or not tree.is_plain(x) or not x.numel() or tree.shard_of(x):
        return _NO_MATRIX
    flat = x.detach().flatten(1)
    if min(flat.shape) > WIDEST:
        return _WIDE
    return Matrix.of(flat if flat.shape[0] > flat.shape[1] else flat.T)
