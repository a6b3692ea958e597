"""The error of rounding the weights of a model, what its layers receive, and gradients, to number formats."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hookcli.capabilities.formats.figures import TensorFigures
from hookcli.capabilities.formats.layers import LayerProbe
from hookcli.capabilities.formats.layout import ACTIVATIONS, DEFAULT, GRADIENTS, WEIGHTS, columns_of
from hookcli.capabilities.formats.verdict import margin, note_on, verdict
from hookcli.hooks.events import HookEvent
from hookcli.hooks.parts import selects_parameter
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.layer_rows import laid_out_as
from hookcli.table import Reason, Report, Row, Skipped
from hookcli.table.formatting import counted
from hookcli.table.meta import Meta

_NOTE = "signal-to-noise ratio in dB: at 20 dB the error is 10% of the values; 6 dB less is twice the error"
_INFINITE = "inf: rounding changes no value; -inf: values become infinite"


class FormatsProbe(LayerProbe):
    """A row per weight, per tensor that a layer with weights receives, and per gradient of one that it returns.

    `formats` are names of `BY_NAME`, `following` the command that says more. A weight is a parameter of two or more
    dimensions; others are seldom rounded. Rows of a matrix, and the blocks along them, are an output channel of a
    weight or a token (a place of an image) of another tensor. The errors of several calls and batches add up; each call
    has its own scales.
    """

    name = "formats"

    def __init__(
        self,
        *,
        of: Collection[str] = (WEIGHTS, ACTIVATIONS),
        formats: Sequence[str] = DEFAULT,
        following: str = "",
    ) -> None:
        super().__init__()
        self._following = following
        self._of, self._formats = of, formats
        self.columns = columns_of(formats)
        self.needs_backward = GRADIENTS in of
        self._vectors = 0
        self._made: list[Row] | None = None

    def attach(self, session: HookSession) -> None:
        """Measure the weights, and ask for hooks."""
        super().attach(session)
        self._vectors = len([*session.model.parameters()]) - len({id(x) for own in self.held.values() for _, x in own})
        if WEIGHTS in self._of:
            self.take_weights(dict(session.model.named_modules()))
        if ACTIVATIONS in self._of:
            session.forward_pre(self.enter)
        if GRADIENTS in self._of:
            session.output_grad(self._arrive)

    def take_weights(self, modules: Mapping[str, nn.Module]) -> None:
        """Add the figures of each weight, of tied ones of the first."""
        first: dict[int, str] = {}
        for fqn, name, parameter in ((fqn, *each) for fqn, own in self.held.items() for each in own):
            full = f"{fqn}.{name}".lstrip(".")
            owner = first.setdefault(id(parameter), full)
            if not selects_parameter(self.session.select, self.session.model, full):
                continue
            if owner != full:
                self.left_out[Skipped(full, f"tied to {owner}", kind=Reason.TIED)] = None
            elif is_lazy(parameter):
                self.skip(full, "", "lazy: it has no values before its module has run once")
            elif self.places.get(fqn) == fqn:
                self.take(fqn, "weight", "" if name == "weight" else name, modules[fqn], parameter)
            else:
                self.take(full, "weight", "", laid_out_as(modules, fqn), parameter)

    def _arrive(self, event: HookEvent) -> None:
        if event.fqn in self.places and event.grad is not None and event.module is not None and not event.inner:
            self.take(self.places[event.fqn], "gradient", event.path, event.module, event.grad)

    def new_figures(self, device: torch.device) -> TensorFigures:
        """Figures in the formats."""
        return TensorFigures(self._formats, device)

    def rows(self) -> list[Row]:
        """Return the rows in the order of modules: a layer's weights, what it receives, and gradients."""
        if self._made is None:
            rows: list[dict[str, Any]] = [
                {**values, "calls": one.calls, **one.values()} for values, one in self.seen.values() if one.calls
            ]
            order = {place: number for number, place in enumerate(dict.fromkeys(row["fqn"] for row in rows))}
            rows.sort(key=lambda row: order[row["fqn"]])
            limits = (min(margin(row, name) for name in self._formats) for row in rows)
            noted = ({**r, "spare": least, **note_on(r, self._formats)} for r, least in zip(rows, limits, strict=True))
            self._made = [Row({**row, "index": number}) for number, row in enumerate(noted)]
        return self._made

    def report(self, model: str, meta: Meta) -> Report:
        """Return the report, with the command to type next."""
        report = super().report(model, meta)
        following = self._following if report.rows else ""
        return replace(report, meta={**report.meta, "next": following}) if following else report

    def totals(self) -> Mapping[str, object]:
        """Return the verdict."""
        return {"verdict": verdict(self.rows(), self._formats)}

    def skipped(self) -> list[Skipped]:
        """Return what has no row, with the reason; layers that did not run only where their inputs count."""
        return [*self.left_out, *(self.unseen() if {ACTIVATIONS, GRADIENTS} & {*self._of} else [])]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        infinite = any(math.isinf(value) for row in rows for key, value in row.values.items() if key[:4] == "sqnr")
        left = f"left out: {counted(self._vectors, 'vector')} (biases, weights of norms), which are seldom rounded"
        lines = {_NOTE: bool(rows), _INFINITE: infinite, left: self._vectors and WEIGHTS in self._of and rows}
        return [line for line, is_needed in lines.items() if is_needed]
