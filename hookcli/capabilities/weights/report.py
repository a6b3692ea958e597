"""Makes reports of tensors at rest: of files, without torch, and of the parameters and buffers of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hookcli.capabilities.weights.layout import SPECTRAL, WEIGHTS
from hookcli.errors import ModelError
from hookcli.table import Column, Reason, Report, Row, Skipped
from hookcli.table.columns import names
from hookcli.table.formatting import counted
from hookcli.table.meta import Meta, with_notes
from hookcli.table.names import numbered_lists
from hookcli.table.remarks import of_complex
from hookcli.table.stats import HIST_KEYS, STATS_KEYS
from hookcli.tensors.files.statistics import WIDEST, Told, measured, spectrum
from hookcli.tensors.files.stored import StoredTensor

if TYPE_CHECKING:
    from torch import nn

_MEASURED = {*STATS_KEYS, *HIST_KEYS, *names(SPECTRAL)}
_HEADER = tuple(name for name in names(WEIGHTS) if name not in _MEASURED)
_SPECTRAL = (
    "singular values: exact for matrices with a side of up to 256, otherwise by Lanczos iteration to 0.05 %; "
    "dimensions after the first are the columns of the matrix; "
    "grouped rows show the largest norm and the smallest stable rank of their matrices"
)
_OF_MODELS = ("kind", "type")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The figures wanted of each tensor: statistics, spectra, or only what its header says."""

    stats: bool = True
    spectral: bool = False

    def columns(self, *, model: bool) -> tuple[Column, ...]:
        wanted = {*_HEADER, *((*STATS_KEYS, *HIST_KEYS) if self.stats else ())}
        wanted |= set(names(SPECTRAL)) if self.spectral else set()
        return tuple(c for c in WEIGHTS if c.name in wanted.difference(("file",) if model else _OF_MODELS))


@dataclass
class WeightsReport:
    """The report of tensors, which grows as they are measured."""

    model: str
    tensors: Sequence[StoredTensor]
    meta: Meta
    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unsure: int = 0
    """Number of matrices whose largest singular value is only bounded from below."""

    def measure(self, wanted: Wanted, begin: Callable[[StoredTensor], Told]) -> None:
        """Measure all tensors. `begin(name)` is called for each tensor and returns a callback for the bytes read."""
        for tensor in self.tensors:
            if tensor.tied:
                self.skipped.append(Skipped(tensor.name, f"tied to {tensor.tied}", kind=Reason.TIED))
            else:
                self.rows.append(self._row(tensor, wanted, begin(tensor)))

    def _row(self, tensor: StoredTensor, wanted: Wanted, tell: Told) -> Row:
        values: dict[str, object] = {"fqn": tensor.name, "kind": tensor.kind, "type": tensor.type, "file": tensor.file}
        values |= {"shape": list(tensor.shape), "dtype": tensor.dtype, "bytes": tensor.nbytes}
        columns = names(self.columns)
        values = {name: value for name, value in values.items() if name in columns}
        if not (wanted.stats or wanted.spectral):
            return Row(values)
        if tensor.unreadable:
            self.skipped.append(Skipped(tensor.name, tensor.unreadable))
            return Row(values)
        stats = measured(tensor, tell) if wanted.stats else None
        if wanted.spectral:
            unfit = "complex values" if tensor.is_complex else ""
            unfit = f"more than {WIDEST:,} columns" if tensor.columns > WIDEST else unfit
            figures = spectrum(tensor.rows, tensor.columns) if tensor.is_matrix and not unfit else None
            values |= {"spectral_norm": None, "stable_rank": None}
            if figures is not None:
                values |= {"spectral_norm": figures.norm, "stable_rank": figures.stable_rank}
                self.unsure += not figures.converged
            elif tensor.is_matrix:
                self.skipped.append(Skipped(tensor.name, f"no singular values: {unfit or 'it has NaN or Inf'}"))
        return Row(values, stats)

    @property
    def report(self) -> Report:
        done = len(self.rows) + sum(item.kind is Reason.TIED for item in self.skipped)
        containers = numbered_lists(row.fqn for row in self.rows)
        meta: Meta = {**self.meta, "containers": containers, "complete": done == len(self.tensors)}
        meta = with_notes(meta, *of_complex(self.rows))
        if any(column in SPECTRAL for column in self.columns):
            unsure = f"; {counted(self.unsure, 'value')} not converged: a lower bound" if self.unsure else ""
            meta = with_notes(meta, f"{_SPECTRAL}{unsure}")
        tensors = [tensor for tensor in self.tensors if not tensor.tied]
        dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
        by_dtype = {dtype: _counts([t for t in tensors if t.dtype == dtype]) for dtype in dtypes}
        totals = _counts(tensors) | {"dtypes": by_dtype}
        if not self.tensors:
            totals["nothing"] = "No tensors"
        return Report("weights", self.model, self.columns, self.rows, meta, totals, self.skipped, grouping="disjoint")


def _counts(tensors: Sequence[StoredTensor]) -> dict[str, object]:
    return {"tensors": len(tensors), "elements": sum(t.numel for t in tensors), "bytes": sum(t.nbytes for t in tensors)}


def parameters_and_buffers(model: nn.Module) -> Iterator[StoredTensor]:
    """All tensors of a model, by module, then the weights of quantized modules, which PyTorch packs for its kernels.

    A tensor of several names is tied to its first. Raises ModelError for lazy ones.
    """
    from torch.nn.parameter import is_lazy

    from hookcli.probes.shared.module_facts import packed_parameters
    from hookcli.tensors.files.pytorch import stored
    from hookcli.tensors.tree import type_text

    first: dict[int, str] = {}
    for owner, module in model.named_modules():
        for kind, named in (("parameter", module.named_parameters), ("buffer", module.named_buffers)):
            for name, tensor in named(recurse=False, remove_duplicate=False):
                fqn = f"{owner}.{name}" if owner else name
                if is_lazy(tensor):
                    raise ModelError(f"{fqn} is lazy: it has no values before its module has run once")
                tied = first.setdefault(id(tensor), fqn)
                yield stored(fqn, tensor, kind=kind, type=type_text(module), tied=tied if tied != fqn else "")
    for fqn, tensor in packed_parameters(model):
        yield stored(fqn, tensor, kind="parameter", type=type_text(model.get_submodule(fqn.rpartition(".")[0])))
