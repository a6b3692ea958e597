"""The error of rounding the weights of a model, what its layers receive, and gradients, to number formats."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.capabilities.formats.figures import TensorFigures
from hookcli.capabilities.formats.layout import ACTIVATIONS, DEFAULT, GRADIENTS, WEIGHTS, columns_of
from hookcli.capabilities.formats.verdict import note_on, verdict
from hookcli.hooks.events import HookEvent
from hookcli.hooks.parts import selects_parameter
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.modules import Convolution
from hookcli.probes.base import Probe
from hookcli.probes.shared.unmeasured import unmeasured
from hookcli.table import Reason, Row, Skipped
from hookcli.table.formatting import counted
from hookcli.table.names import around
from hookcli.tensors import tree
from hookcli.tensors.chunks import cause

_MATRIX = 2  # dimensions
_NOTE = "signal-to-noise ratio in dB: at 20 dB the error is 10% of the values; 6 dB less is twice the error"
_INFINITE = "inf: rounding changes no value; -inf: values become infinite"


class FormatsProbe(Probe):
    """A row per weight, per tensor that a layer with weights receives, and per gradient of one that it returns.

    `formats` are names of `BY_NAME`. A weight is a parameter of two or more dimensions; others are seldom rounded. Rows
    of a matrix, and the blocks along them, are an output channel of a weight or a token (a place of an image) of
    another tensor. The errors of several calls and batches add up; each call has its own scales.
    """

    name = "formats"
    merges_batches = True

    def __init__(self, *, of: Collection[str] = (WEIGHTS, ACTIVATIONS), formats: Sequence[str] = DEFAULT) -> None:
        self._of, self._formats = of, formats
        self.columns = columns_of(formats)
        self.needs_backward = GRADIENTS in of
        self._seen: dict[tuple[str, str, str], tuple[dict[str, Any], TensorFigures]] = {}
        self._places: dict[str, str] = {}
        self._skipped: dict[Skipped, None] = {}
        self._vectors = 0
        self._made: list[Row] | None = None

    def attach(self, session: HookSession) -> None:
        """Measure the weights, and ask for hooks.

        A layer is a module that holds weights and has no such modules within, or PyTorch's attention. Its rows stand
        at its name, others at that of the parameter, so that no row hides those of modules within.
        """
        self.session = session
        modules = dict(session.model.named_modules())
        held = {fqn: own for fqn, module in modules.items() if (own := [*_matrices(module)])}
        within = {outer for fqn in held for outer in around(fqn)}
        for fqn, own in held.items():
            if isinstance(modules[fqn], nn.MultiheadAttention):
                self._places[fqn] = f"{fqn}.{own[0][0]}".lstrip(".")
            elif fqn not in within:
                layer = fqn.partition(".parametrizations.")[0]  # whose weight they compute
                self._places[layer] = layer
        self._vectors = len([*session.model.parameters()]) - len({id(x) for own in held.values() for _, x in own})
        if WEIGHTS in self._of:
            self._take_weights(modules, held)
        if ACTIVATIONS in self._of:
            session.forward_pre(self._enter)
        if GRADIENTS in self._of:
            session.output_grad(self._arrive)

    def _take_weights(self, modules: Mapping[str, nn.Module], held: Mapping[str, Sequence[tuple[str, Any]]]) -> None:
        first: dict[int, str] = {}
        for fqn, name, parameter in ((fqn, *each) for fqn, own in held.items() for each in own):
            full = f"{fqn}.{name}".lstrip(".")
            owner = first.setdefault(id(parameter), full)
            if not selects_parameter(self.session.select, self.session.model, full):
                continue
            if owner != full:
                self._skipped[Skipped(full, f"tied to {owner}", kind=Reason.TIED)] = None
            elif is_lazy(parameter):
                self._skip(full, "", "lazy: it has no values before its module has run once")
            elif self._places.get(fqn) == fqn:
                self._take(fqn, "weight", "" if name == "weight" else name, modules[fqn], parameter)
            else:
                self._take(full, "weight", "", modules[fqn], parameter)

    def _enter(self, event: HookEvent) -> None:
        seen = set[int]()
        for path, x in tree.arguments(event.args, event.kwargs):
            if id(x) not in seen and event.fqn in self._places and event.module is not None:
                seen.add(id(x))  # query, key and value are often one tensor
                self._take(self._places[event.fqn], "input", path, event.module, x)

    def _arrive(self, event: HookEvent) -> None:
        if event.fqn in self._places and event.grad is not None and event.module is not None and not event.inner:
            self._take(self._places[event.fqn], "gradient", event.path, event.module, event.grad)

    def _take(self, fqn: str, kind: str, path: str, module: nn.Module, x: Tensor) -> None:
        """Add the figures of a tensor to those of earlier calls, or say why it has none."""
        if not (x.is_floating_point() or x.is_complex() or kind == "weight") or not x.numel():
            return  # numbers of tokens, masks
        if not x.is_floating_point() or not tree.is_plain(x) or tree.layout_of(x):
            self._skip(fqn, path or kind, f"{tree.dtype_text(x)}: no matrix of floating-point numbers in plain memory")
            return
        values: dict[str, Any] = {"fqn": fqn, "kind": kind, "type": tree.type_text(module), "path": path}
        values |= {"shape": tree.shape_of(x), "dtype": tree.dtype_text(x)}
        try:
            with torch.inference_mode(False), torch.no_grad():  # else later calls could not add to the sums
                new = values, TensorFigures(self._formats, x.device)
                figures = self._seen.setdefault((fqn, kind, path), new)[1]
                figures.add(*(_weight if kind == "weight" else _rows)(module, x.detach()))
        except (RuntimeError, NotImplementedError) as error:  # a device that lacks an operator is no reason to lose all
            self._skip(fqn, path or kind, f"can't be rounded ({values['dtype']}, {cause(error, x)})")

    def _skip(self, fqn: str, path: str, reason: str) -> None:
        self._skipped[Skipped(fqn, reason, path)] = None

    def batch_ended(self) -> None:
        """Do nothing: the figures of several batches add up like those of several calls."""

    def rows(self) -> list[Row]:
        """Return the rows in the order of modules: a layer's weights, what it receives, and gradients."""
        if self._made is None:
            rows: list[dict[str, Any]] = [
                {**values, "calls": one.calls, **one.values()} for values, one in self._seen.values() if one.calls
            ]
            order = {place: number for number, place in enumerate(dict.fromkeys(row["fqn"] for row in rows))}
            rows.sort(key=lambda row: order[row["fqn"]])
            noted = ({**row, **note_on(row, self._formats)} for row in rows)
            self._made = [Row({**row, "index": number}) for number, row in enumerate(noted)]
        return self._made

    def totals(self) -> Mapping[str, object]:
        """Return the verdict."""
        return {"verdict": verdict(self.rows(), self._formats)}

    def skipped(self) -> list[Skipped]:
        """Return what has no row, with the reason; layers that did not run only where their inputs count."""
        ran = unmeasured(self.session) if {ACTIVATIONS, GRADIENTS} & {*self._of} else []
        return [*self._skipped, *(item for item in ran if item.fqn in self._places)]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        infinite = any(math.isinf(value) for row in rows for key, value in row.values.items() if key[:4] == "sqnr")
        left = f"left out: {counted(self._vectors, 'vector')} (biases, weights of norms), which are seldom rounded"
        lines = {_NOTE: bool(rows), _INFINITE: infinite, left: self._vectors and WEIGHTS in self._of and rows}
        return [line for line, is_needed in lines.items() if is_needed]


def _matrices(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The module's own parameters that are more than one vector."""
    for name, parameter in module.named_parameters(recurse=False):
        of_layer = name == "weight" and isinstance(module, (nn.Linear, Convolution))  # of one output, too
        if is_lazy(parameter) or (
            parameter.dim() >= _MATRIX and (of_layer or parameter.numel() > max(parameter.shape, default=0))
        ):
            yield name, parameter


def _weight(module: nn.Module, x: Tensor) -> tuple[Tensor, int, int]:
    """A weight with output channels first, how many dimensions are rows, and how many columns an input channel has."""
    if isinstance(module, Convolution):
        if getattr(module, "transposed", False):  # [in, out / groups, ...]
            x = x.unflatten(0, (module.groups, -1)).transpose(1, 2).flatten(0, 1)
        return x, 1, math.prod(x.shape[2:])
    x = x.T if type(module).__name__ == "Conv1D" else x  # Transformers' transposed Linear
    return x, x.dim() - 1, 1


def _rows(module: nn.Module, x: Tensor) -> tuple[Tensor, int, int]:
    """Another tensor with features last: the channels of images, else the last dimension."""
    dims = len(module.kernel_size) + 1 if isinstance(module, Convolution) else 1
    x = x.movedim(-dims, -1) if x.dim() >= dims else x
    return x, max(x.dim() - 1, 0), 1
