"""Runs a model with its layers' weights and inputs rounded, all together and one by one, and compares outputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from hookcli.capabilities.formats.effect_verdict import Effects, Figures, cells, verdict
from hookcli.capabilities.formats.layout import ACTIVATIONS, WEIGHTS, effect_columns
from hookcli.capabilities.formats.roundings import Layer, Rounding, roundable
from hookcli.engine.changed_runs import ChangedRuns, one_by_one
from hookcli.engine.gradients import again_with_gradients, with_gradients
from hookcli.engine.output_changes import Outputs
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.probing import Edits, of_hooks, parse_edits
from hookcli.engine.run_info import finished
from hookcli.errors import HookcliError, UsageError, kept_if_interrupted, message_of
from hookcli.hooks.events import HookEvent
from hookcli.hooks.parts import Select
from hookcli.hooks.session import HookSession
from hookcli.hooks.tensor_origins import version_of
from hookcli.table import Report, Row, Skipped
from hookcli.table.formatting import listed, number
from hookcli.table.meta import Meta, with_notes
from hookcli.tensors import tree


@dataclass
class EffectRun:
    """The effect of rounding on a prepared run's output, in `formats`, of the layers that `select` allows.

    All layers are rounded together in each format. One by one they are rounded in the formats in which the output then
    differs, or if there is none, in that which changes it most.
    """

    run: PreparedRun
    formats: Sequence[str]
    of: Collection[str] = (WEIGHTS, ACTIVATIONS)
    edits: Edits = ()
    fastpath: bool = True
    select: Select | None = None
    outputs: Outputs | None = None
    layers: Sequence[Layer] = ()
    effects: Effects = field(default_factory=Effects)
    skipped: dict[Skipped, None] = field(default_factory=dict)
    received: dict[str, bool] = field(default_factory=dict)
    changing: set[str] = field(default_factory=set)

    @property
    def may_fuse(self) -> bool:
        """True if attention may take PyTorch's fused path, which calls no layer, so that no input can be rounded."""
        return self.fastpath and ACTIVATIONS not in self.of

    def report(self) -> Report:
        """Run everything. An interrupt has the report of the runs until then, as its `reports`.

        Raises ModelError where the model fails as it is, UsageError where nothing can be rounded.
        """
        run, began = self.run, perf_counter()
        run.feedback.stage(f"running {run.name} as it is")
        again_with_gradients(self._as_it_is, run.step)
        chosen = {n: m for n, m in run.model.named_modules() if self.select is None or self.select(n, m)}
        self.layers = list(roundable(run.model, self.of, chosen, self.received, self.changing, self.skipped))
        if not self.layers:
            raise UsageError("no layer to round: none has weights of two or more dimensions, or none was selected")
        start = perf_counter()
        self.effects.noise = self._figures(None)["change"]
        forward = perf_counter() - start
        with kept_if_interrupted(lambda: [self._report(began, complete=False)]):
            run.feedback.stage("rounding all layers")
            for form in self.formats:
                self._try(Rounding(self.layers, form, run.model), self.effects.whole)
            each = [[layer] for layer in self.layers if self.layers[1:]]
            todo = [Rounding(layer, form, run.model) for form in self.effects.apart() for layer in each]
            run.feedback.stage("rounding layer by layer")
            for rounding in one_by_one(todo, forward, f"effect of rounding on {run.name}", run.feedback):
                self._try(rounding, self.effects.alone.setdefault(rounding.layers[0].fqn, {}))
        return self._report(began, complete=True)

    def _as_it_is(self, gradients: bool) -> None:
        """Run the model without a change, for its outputs and the layers that are called with numbers."""
        if gradients:
            self.run = replace(self.run, step=with_gradients(self.run.step, self.run.info))
        self.outputs, self.received, self.changing = None, {}, set()
        versions: dict[tuple[str, int], list[tuple[Any, int]]] = {}

        def see(event: HookEvent) -> None:
            arguments = [x for _, x in tree.arguments(event.args, event.kwargs)]
            versions[event.fqn, event.call] = [(x, version_of(x)) for x in arguments]
            self.received[event.fqn] = any(x.is_floating_point() for x in arguments) or self.received.get(
                event.fqn, False
            )

        def leave(event: HookEvent) -> None:
            if any(version_of(x) != version for x, version in versions.pop((event.fqn, event.call), ())):
                self.changing.add(event.fqn)

        def begin(session: HookSession) -> None:
            session.forward_pre(see)
            session.forward(leave)

        self._run(self._keep, begin=begin, select=None)

    def _keep(self, output: object) -> None:
        self.outputs = Outputs.of(output)
        if not self.outputs.first:
            raise UsageError("the model returns no floating-point tensor, so nothing can be seen to change")

    def _run(self, ran: Any, *changes: Any, **watching: Any) -> None:
        ChangedRuns(self.run, self.edits, self.may_fuse).once(ran, *changes, **watching)

    def _figures(self, rounding: Rounding | None) -> Figures:
        """The figures of a run under a change, or without one; infinite where the output has another shape."""
        figures = Figures()

        def measure(output: object) -> None:
            assert self.outputs
            distances = self.outputs.distances(output)
            figures["change"] = math.inf if distances is None else max(distances.values(), default=0.0)
            figures["top"] = self.outputs.same_top(output)

        self._run(measure, *((rounding.edits(), rounding.weights()) if rounding else ()))
        return figures

    def _try(self, rounding: Rounding, figures: dict[str, Figures]) -> None:
        """Add the figures of a change by its format; infinite ones where the model fails, with the reason."""
        try:
            figures[rounding.form] = self._figures(rounding)
        except HookcliError as error:
            figures[rounding.form] = {"change": math.inf, "top": None, "fails": True}
            reason = f"{rounding.name}: {message_of(error)}".partition("\n")[0]
            self.skipped[Skipped("" if rounding.layers[1:] else rounding.layers[0].fqn, reason)] = None

    def _report(self, began: float, *, complete: bool) -> Report:
        run, outputs = self.run, self.outputs
        assert outputs
        info: Meta = {**run.info, **of_hooks(self.may_fuse, parse_edits(self.edits, run.model, False), None)}
        info |= {"complete": complete, "seconds": perf_counter() - began}
        effects, kinds = self.effects, {layer.fqn: layer.type for layer in self.layers}
        whole = ("", tree.type_text(run.model)) if self.layers[1:] else (self.layers[0].fqn, self.layers[0].type)
        places = [(*whole, effects.whole)] if effects.whole else []
        places += [(fqn, kinds[fqn], effects.alone[fqn]) for fqn in effects.ranked()]
        rows = []
        for place, (fqn, kind, figures) in enumerate(places):
            rows.append(Row({"order": place, "fqn": fqn, "type": kind, **cells(figures), "index": place}))
        meta = with_notes(finished(info), *self._notes(outputs))
        totals = {"verdict": verdict(effects, outputs, self.layers), "runs": effects.runs}
        columns = effect_columns(self.formats)
        return Report("effect", run.name, columns, rows, meta, totals, [*self.skipped], grouping="list")

    def _notes(self, outputs: Outputs) -> Iterator[str]:
        several = f"the output that changes most ({len(outputs.first)} are compared)"
        what = several if len(outputs.first) > 1 else outputs.in_words()
        rounded = " and ".join({WEIGHTS: WEIGHTS, ACTIVATIONS: "inputs"}[word] for word in self.of)
        rank = "; row (model): of all layers together" if self.layers[1:] else ""
        yield f"relative l2 distance of {what}, with the {rounded} of a layer rounded{rank}"
        left = [form for form in self.effects.whole if form not in self.effects.apart()]
        if left and self.layers[1:]:
            yield f"not rounded layer by layer: {listed(left, 8)}, as all layers together change the output less"
        if 0 < self.effects.noise < math.inf:
            yield f"noise: a second run of the unchanged model changes the output by {number(self.effects.noise)}"
