"""Runs a model once for each change of a sweep, on one batch with the same random numbers, and ranks the changes."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

from torch import Tensor

from hookcli.engine import failure
from hookcli.engine.gradients import again_with_gradients, with_gradients
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.engine.probing import Edits, of_hooks, parse_edits
from hookcli.engine.run_info import finished
from hookcli.engine.sweep.parts import changed
from hookcli.engine.sweep.trials import SeenModules, Sweep, Trial, trials
from hookcli.errors import HookcliError, UsageError, UserCode, message_of
from hookcli.hooks.edits.base import check_applied
from hookcli.hooks.parts import Select, uncompiled
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.unregistered import UnregisteredParts
from hookcli.sources import losses
from hookcli.table import Report, Row, Skipped
from hookcli.table.columns.layouts import SWEEP
from hookcli.table.formatting import counted, duration, number
from hookcli.table.meta import Meta, with_notes
from hookcli.table.names import Levels, is_within
from hookcli.tensors import tree
from hookcli.tensors.distance import compare, resolve

_BAR = 16  # characters
_LOOKED_FOR = {
    "heads": "none was found among classes named after attention, with num_heads or the like and an output projection",
    "experts": "none was found in a list, or a weight of three dimensions, of a module that is called experts",
}
_DECIDES = 2.0  # times the effect of the next: a change alone decides, if it is at least half of the figure
_TIE = 1 - 1e-6
Figures = dict[str, float]  # `logit` and `loss`, if the run has them, and `output_change`, if the shape is the same


@dataclass
class SweepRun:
    """A sweep of a prepared run, under the caller's own `edits`, of the modules that `select` allows.

    The main output is the item `logits`, else the first floating-point tensor of more than one element. `logit` is an
    index into its last dimension (of the first item, and of the last position), or `PATH[INDICES]`. The loss is the
    step's, else the one that the model returns, if it does.
    """

    run: PreparedRun
    sweep: Sweep
    logit: str = ""
    edits: Edits = ()
    fastpath: bool = True
    select: Select | None = None
    _rows: list[tuple[Trial, Figures]] = field(default_factory=list)
    _skipped: list[Skipped] = field(default_factory=list)
    _first: list[tuple[str, Tensor]] = field(default_factory=list)

    def report(self) -> Report:
        """Run everything. An interrupt has the report of the runs until then, as its `reports`.

        Raises ModelError where the model fails as it is, UsageError where nothing can be swept.
        """
        run, began = self.run, perf_counter()
        run.feedback.stage(f"running {run.name} as it is")
        self._base = again_with_gradients(self._as_it_is, run.step)
        levels, path = Levels.of(run.info), self._first[0][0]
        todo, self._skipped = trials(self.sweep, run.model, self._seen, path, levels, self.select)
        start = perf_counter()
        self._key = next(key for key in ("logit", "loss", "output_change") if key in self._base)
        logit = self.logit if "[" in self.logit else f"logit {self.logit}"
        self._what = {"logit": logit, "loss": "the loss"}.get(self._key, "the output")
        self._noise = self._effect(self._once(None))
        each = perf_counter() - start
        about = f"{counted(len(todo), 'run')}, about {duration(len(todo) * each)} (a forward: {duration(each)})"
        if todo:
            run.feedback.remark(f"sweep of {run.name}: {about}")
        run.feedback.stage("sweeping")
        try:
            for done, trial in enumerate(todo):
                left = duration((perf_counter() - start) / (done + 1) * (len(todo) - done))
                bar = ("█" * (_BAR * done // len(todo))).ljust(_BAR, "░")
                run.feedback.follow(partial(str, f"{bar} {done} of {len(todo)}, {left} left · {trial.name}"))
                self._try(trial)
        except KeyboardInterrupt as error:
            error.reports = (self._report(began, complete=False),)  # type: ignore[attr-defined]
            raise
        if not self._rows:
            none = _LOOKED_FOR.get(self.sweep.of, "none was found")
            reason = [none, *(f"{item.fqn}: {item.reason}" for item in self._skipped)][-1]
            raise UsageError(f"no {self.sweep.of} could be swept: {reason}")
        return self._report(began, complete=True)

    def _as_it_is(self, gradients: bool) -> Figures:
        """The figures of the model without a change, of whose run `_first` and `_seen` are; with gradients on or off
        for this run and those after it.
        """
        self._first.clear()
        if gradients:
            self.run = replace(self.run, step=with_gradients(self.run.step, self.run.info))
        return self._once(None, watch=True)

    def _once(self, trial: Trial | None, *, watch: bool = False) -> Figures:
        """Run the model under one change, or as it is, and put all back; `watch` sees what each module returns."""
        model, run, figures = self.run.model, self.run, Figures()
        edits = [*parse_edits(self.edits, model, False), *(trial.edits if trial else ())]
        edits = [replace(edit, number=n, applied=0) for n, edit in enumerate(edits)]
        select = None if watch else lambda fqn, module: False
        discards = not run.step.gradients
        session = HookSession(model, select=select, fastpath=self.fastpath, edits=edits, discard_saved=discards)
        step = replace(run.step, backward=False, graph=False, passes=1, ran=partial(self._measure, figures))
        kept = preserved(model, run.inputs, parameters=False)
        parts = preserved(UnregisteredParts(model), (), parameters=False)
        with step.mode(), uncompiled(model), kept, parts, changed(trial.weights if trial else ()), session:
            if watch:
                self._seen = SeenModules(session)
            with UserCode(partial(failure.crashed, model, {})):
                step.run(session, *arguments(run.inputs), {})
        check_applied(edits, ())
        return figures

    def _try(self, trial: Trial) -> None:
        """Add a row for a change, or where the model can't run under it, the reason."""
        try:
            self._rows.append((trial, self._once(trial) | {"index": len(self._rows)}))
            reason = "" if "output_change" in self._rows[-1][1] else "the output has another shape: no output change"
        except HookcliError as error:
            reason = message_of(error).partition("\n")[0]
        self._skipped += [Skipped(trial.name, reason)] if reason else []

    def _measure(self, figures: Figures, output: object) -> None:
        """Take the figures of a run, when the model returns."""
        tensors = [(path, x) for path, x in tree.leaves(output) if x.is_floating_point() or x.is_complex()]
        if not tensors:
            raise UsageError("the model returns no floating-point tensor, so nothing can be seen to change")
        path, main = min(tensors, key=lambda item: ("logits" not in item[0], item[1].numel() < 2))
        self._first = self._first or [(path, main.detach().clone())]
        with suppress(*([] if self.run.step.loss else [HookcliError])):
            figures["loss"] = float(self.run.step.loss_of(self.run.step.loss or "loss", output, {})[0])
        if self.logit:
            figures["logit"] = self._logit_of(output, main)
        if (first := self._first[0][1]).shape == main.shape and (pending := compare(first, main)):
            (apart,) = resolve([pending])
            figures["output_change"] = math.inf if apart.nonfinite else apart.rel_l2

    def _logit_of(self, output: object, main: Tensor) -> float:
        path, bracket, index = self.logit.removesuffix("]").rpartition("[")
        with suppress(UsageError, ValueError, IndexError):
            x, at = losses.at_path(output, path=path) if path else main, tuple(map(int, index.split(",")))
            at = at if bracket else (0, -1)[: main.dim() - 1] + at
            if isinstance(x, Tensor) and x.dim() == len(at) and not x.is_complex():
                return float(x[at])
        there = ", ".join(f"{path}[{tree.shape_text(x)}]" for path, x in tree.leaves(output))
        right = next((path for path, x in tree.leaves(output) if x is main), "") + f"[{'0,' * (main.dim() - 1)}42]"
        wrong = f"--logit {self.logit!r}: no number of the output, {there}; give 42, or {right!r}"
        raise UsageError(wrong, option="logit")

    def _report(self, began: float, *, complete: bool) -> Report:
        sweep, base = self.sweep, self._base
        info: Meta = {**self.run.info, **of_hooks(self.fastpath, parse_edits(self.edits, self.run.model, False), None)}
        turns = f"each {sweep.of[:-1]} {sweep.done} in turn"
        info |= {"sweep": turns, "complete": complete, "seconds": perf_counter() - began}
        notes = [f"Output change: relative l2 distance of {self._first[0][0] or 'the output'}"]
        if 0 < self._noise < math.inf:
            notes.append(f"noise: run again as it is, {self._what} changes by {number(self._noise)}")
        if any(trial.bottleneck for trial, _ in self._rows):
            notes.append("bottleneck: all passes through it, so nothing is left of the input then; ranked last")
        ranked, rows = sorted(self._rows, key=lambda row: (row[0].bottleneck, -self._effect(row[1]))), []
        for place, (trial, figures) in enumerate(ranked, 1):
            values = {"order": place, "fqn": trial.fqn, "type": trial.type, **trial.part, "output_change": None}
            changes = {f"{key}_change": figures[key] - base[key] for key in ("logit", "loss") if key in base}
            rows.append(Row({**values, **figures, **changes, "bottleneck": trial.bottleneck}))
        meta, totals = with_notes(finished(info), *notes), {"verdict": self._verdict(ranked), "runs": len(rows)}
        return Report("sweep", self.run.name, SWEEP, rows, meta, totals, self._skipped, grouping="list")

    def _effect(self, figures: Figures) -> float:
        """How far a change moves the figure that ranks, `_key`; infinite for one that is not finite, or not there."""
        effect = abs(figures.get(self._key, math.inf) - self._base[self._key])
        return math.inf if math.isnan(effect) else effect

    def _verdict(self, ranked: list[tuple[Trial, Figures]]) -> str:
        """The change that matters most: layers.2.mlp decides logit 42: 3.100 → -0.4000 when zeroed.

        Of several with the same effect, as all modules of one branch have, one that contains others is named.
        """
        key, done, what = self._key, f"when {self.sweep.done}", self._what
        if not math.isfinite(self._base[key]) or (key == "output_change" and self._first[0][1].isnan().any()):
            return f"The ranks mean nothing: {what} is not finite as it is (hookcli check says where that begins)"
        most = self._effect(ranked[0][1]) if ranked else 0.0
        if most <= self._noise:
            more = f" by more than another run as it is: {number(self._noise)}" if self._noise else ""
            return f"None of {counted(len(ranked), self.sweep.of[:-1])} changes {what} {done}{more}"
        rivals = [row for row in ranked if row[0].bottleneck == ranked[0][0].bottleneck]
        tied = [row for row in rivals if self._effect(row[1]) >= _TIE * most]
        first, figures = next((r for r in tied if any(is_within(one.fqn, r[0].fqn) for one, _ in tied)), ranked[0])
        kin = [t for t, _ in rivals if not t.part and (is_within(t.fqn, first.fqn) or is_within(first.fqn, t.fqn))]
        after = next((row for row in rivals if row not in tied and row[0] not in kin), None)
        alone = len(rivals) > 1 and (after is None or most >= _DECIDES * self._effect(after[1]))
        half = key in self._base and most >= abs(self._base[key]) / 2
        says = f"decides {what}" if alone and half and key != "output_change" else f"changes {what} most"
        says = f"is the most sensitive ({what})" if self.sweep.quantize else says
        before = "relative l2" if key == "output_change" else f"{number(self._base[key])} →"
        now = f"{before} {number(figures[key])}" if key in figures else "another shape"
        then = f" (next: {after[0].name}, {number(after[1].get(key))})" if after and self._effect(after[1]) else ""
        return f"{first.name} {says}: {now} {done}{then}"
