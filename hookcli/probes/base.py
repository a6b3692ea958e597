"""The interface of a probe, and what the statistics probes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from torch import Tensor

from hookcli.errors import HookcliError, OneTensorError, class_name
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.unmeasured import UNINITIALISED, UnreachableTensors, unmeasured
from hookcli.table import HIST_COLUMNS, Column, Reason, Report, Row, Skipped
from hookcli.table.columns.layouts import STATISTICS, with_operators
from hookcli.table.merge import BatchRows
from hookcli.table.meta import Meta, with_notes
from hookcli.table.remarks import of_complex
from hookcli.tensors.chunks import PendingFigures, cause
from hookcli.tensors.stats import Reducer, resolve
from hookcli.tensors.tree import dtype_text, layout_of, shape_of, shard_of, type_text


class TensorSink(Protocol):
    """Receives the live tensors of one run.

    A run that is made again, because PyTorch refused a probe's hooks, begins again with its first batch. `take` must
    neither keep a tensor nor change it.
    """

    def begin(
        self, session: HookSession, args: tuple[object, ...], kwargs: Mapping[str, object], target: object
    ) -> None:
        """Begin `session.batch_number`: the model is about to run on these arguments, and the loss on this target."""

    def take(self, values: Mapping[str, object], tensor: Tensor) -> None:
        """Take a tensor, whose place is in `values`: `kind` (see `hookcli.table.dump.KINDS`), `fqn`, `batch` ..."""

    def finish(self, model: str, meta: Meta, skipped: Sequence[Skipped]) -> None:
        """End: the run is over, or has failed, as the report's `meta` and `skipped` say."""


class Probe(ABC):
    """Looks at one run through hooks.

    `attach` is called once, before the model runs, and asks the session for hooks. `rows` is called once, after the
    run or after its failure, and returns plain numbers. A probe that keeps a tensor past its callback breaks the
    promise that memory does not grow; on an accelerator it must not read a value (`.item()`) before `rows`.
    """

    name: ClassVar[str]
    columns: Sequence[Column]
    needs_backward: bool = False
    needs_input_grad: bool = False
    """True if the model's own inputs must require grad, so that gradients reach them."""
    watches_parameters: bool = False
    """True if its rows are parameters rather than modules."""
    values: bool = True
    """True if the numbers in the tensors matter. Where they don't, the model may run on the meta device."""
    records_graph: bool = False
    """True if its forward should record autograd's graph although nothing runs backward."""
    grouping: str = "nested"
    """The grouping of its rows for a screen; see Report."""
    fastpath: bool = True
    """True if attention may take PyTorch's fused path, whose parts no hook and no counter sees."""
    operators: bool = False
    """True if its rows can also be operators."""
    inside_compiled: bool = False  # True if it needs of modules only what they pass, and gradients
    in_steps: bool = False
    """True if `hookcli run --probe` may record it: its hooks change nothing that the program computes, and its rows are
    places. Rows of one place (see `Column.identity`; calls are not places) merge by the rules of their columns."""

    @abstractmethod
    def attach(self, session: HookSession) -> None:
        """Ask the session for hooks."""

    def building(self) -> AbstractContextManager[object]:
        """A context around the building of the model; it does nothing for most probes."""
        return nullcontext()

    merges_batches: bool = False
    """True if its rows merge over several batches: `batch_ended` is called after each. Else it sees only the first."""

    def batch_ended(self) -> None:
        """Reduce what the batch has shown, so that memory does not grow with batches."""
        raise NotImplementedError(f"the rows of {self.name} do not merge over batches")

    def updated(self, fqn: str, before: Tensor, now: Tensor) -> None:  # noqa: B027
        """Look at a parameter before and after an optimizer's step, in recorded steps that measure updates."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """The rows of the report."""

    def totals(self) -> Mapping[str, object]:
        """Figures for the whole model."""
        return {}

    def skipped(self) -> list[Skipped]:
        """Everything that could not be measured, each with its reason."""
        return []

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Remarks on figures that can be misread."""
        return []

    def report(self, model: str, meta: Meta) -> Report:
        """The finished report of the run that `meta` describes."""
        skipped = self.skipped()
        if meta.get("complete") is False:
            late = "not reached: the run ended earlier"
            skipped = [replace(s, reason=late) if s.kind is Reason.NEVER_CALLED else s for s in skipped]
        rows = self.rows()
        _require("rows", rows, Row)
        _require("skipped", skipped, Skipped)
        meta = with_notes(meta, *self.notes(rows), *of_complex(rows))
        columns = with_operators(self.columns) if self.operators and meta.get("ops") else tuple(self.columns)
        return Report(self.name, model, columns, rows, meta, self.totals(), skipped, grouping=self.grouping)

    one_tensor: OneTensorError | None = None
    """The modules that get no full backward hooks, because these would change what the model computes."""

    def instead(self, error: Exception) -> Probe | None:
        """Another probe to try, if the model failed because of this probe's hooks."""
        return None

    def in_callers_run(self) -> Probe:
        """This probe, or another without hooks that could raise in a program that runs the model itself."""
        return self


def _require(method: str, returned: object, kind: type) -> None:
    """Raises TypeError for what a probe must not return: its own error, which names it, and not a reporter's later."""
    if not isinstance(returned, (list, tuple)):
        raise TypeError(f"{method}() returned {class_name(returned)}, not a list of {kind.__name__}s")
    for item in returned:
        if not isinstance(item, kind):
            raise TypeError(f"{method}() returned {class_name(item)} among its {kind.__name__}s")


class StatsProbe(Probe):
    """A probe whose rows carry TensorStats. Tensors are reduced in the callback and read back only for `rows`.

    `hist`: with histograms, for quantiles and the shares outside of narrower formats. `sink` gets each tensor, too.
    """

    columns: Sequence[Column] = STATISTICS
    tensors: str = ""
    """The kind of its tensors, as `hookcli.table.dump` names kinds."""

    merges_batches = in_steps = True
    session: HookSession | Any = None
    """The session of a probe that is attached to one."""

    def __init__(self, *, hist: bool = False, sink: TensorSink | None = None) -> None:
        self.sink, self.reduce = sink, Reducer(hist=hist)
        self.columns = (*self.columns, *(HIST_COLUMNS if hist else ()))
        self._taken: dict[tuple[object, ...], tuple[dict[str, object], PendingFigures]] = {}
        self._batches = BatchRows(self.columns)
        self._skipped: dict[Skipped, None] = {}
        self.unseen = UnreachableTensors()

    def begin(self, args: tuple[object, ...], kwargs: Mapping[str, object], target: object) -> None:
        """Let the sink begin: hooks are attached, and the model is about to run on this batch."""
        if self.sink:
            self.sink.begin(self.session, args, kwargs, target)

    def report(self, model: str, meta: Meta) -> Report:
        """Return the report, once the sink has ended, too."""
        report = super().report(model, meta)
        if self.sink:
            self.sink.finish(model, report.meta, report.skipped)
        return report

    def take(
        self, values: dict[str, object], tensor: Tensor, *key: object, layout: dict[str, object] | None = None
    ) -> None:
        """Reduce the tensor into a row; a later tensor with the same key replaces it.

        `layout`: how the tensor lies over ranks (`tree.layout_of`), if others than the tensor itself know it.
        """
        ranks = shard_of(tensor) if values.get("kind") == "parameter" else layout_of(tensor) or layout or {}
        row = values | {"shape": shape_of(tensor), "dtype": dtype_text(tensor)} | ranks
        try:
            self._taken[key or (len(self._taken),)] = (row, self.reduce(tensor))
            if self.sink:
                self.sink.take(values | {"kind": self.tensors, "batch": self.session.batch_number}, tensor)
        except HookcliError:
            raise
        except Exception as error:  # a layout or dtype that PyTorch can't reduce is no reason to lose the run
            reason = f"can't be reduced ({row['dtype']}, {cause(error, tensor)})"
            self.skip(str(values["fqn"]), reason, str(values.get("path", "")))

    def take_all(self, event: HookEvent, tensors: Iterable[tuple[str, Tensor]], otherwise: str) -> None:
        """A row for each tensor of a call; without any, the reason, unless `unseen` has one."""
        seen = list(tensors)
        for path, tensor in seen:
            if event.operator and event.operator.uninitialised:
                self.skip(event.fqn, UNINITIALISED, path)
            else:
                self.take(describe(event, path), tensor)
        if not seen and event.fqn not in self.unseen.places:
            self.skip(event.fqn, otherwise)

    def skip(self, fqn: str, reason: str, path: str = "") -> None:
        """Note once that something could not be measured."""
        self._skipped[Skipped(fqn, reason, path)] = None

    def pending(self) -> list[tuple[dict[str, Any], PendingFigures]]:
        """Everything reduced so far, in order: the values of each row, and its pending statistics."""
        return list(self._taken.values())

    def latest_is_finite(self, path: str) -> bool:
        """True if the tensor at this path that was taken last is known to have no infinities."""
        for values, figures in reversed(self._taken.values()):
            if values["path"] == path:
                return figures.on_device is None and not resolve([figures])[0].inf
        return True

    def remarks(self) -> Mapping[tuple[str, int, str], str]:
        """Remarks on what was reduced so far, by fqn, call and path."""
        return {}

    def has_computed(self, row: Row) -> bool:
        """True if it is known that a module itself made the infinities of its row."""
        return False

    def batch_ended(self) -> None:
        """Merge the batch's rows into the rows of the batches before."""
        self._batches.add(self._latest())
        self._taken.clear()

    def rows(self) -> list[Row]:
        """Return a row per tensor, with its statistics; of several batches, only of those that came to their end."""
        return self._batches.rows() or self._latest()

    def _latest(self) -> list[Row]:
        measured = resolve([pending for _, pending in self._taken.values()])
        return [Row(values, stats) for (values, _), stats in zip(self._taken.values(), measured, strict=True)]

    def totals(self) -> Mapping[str, object]:
        """Return the number of rows."""
        return {"rows": len(self._batches) or len(self._taken)}

    def skipped(self) -> list[Skipped]:
        """Return the tensors and modules without statistics, each with its reason."""
        return [*self._skipped, *self.unseen.skipped(), *(unmeasured(self.session) if self.session else [])]


def describe(event: HookEvent, path: str) -> dict[str, object]:
    """The place of a tensor in the run: the keys with which rows of inputs and activations begin."""
    kind = type_text(event.module) if event.module is not None else None
    place = {"fqn": event.fqn, "type": kind, "call": event.call, "index": event.index, "path": path}
    return place | further_values(event)


def further_values(event: HookEvent) -> dict[str, Any]:
    """Further values of an event's row: `edited`, `handed_on`, and for an operator its name and source line."""
    values = {name: value for name in ("edited", "handed_on") if (value := getattr(event, name))}
    if event.operator is not None:
        values |= {"type": event.operator.name, "source": event.operator.source}
    return values
