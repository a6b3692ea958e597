"""Runs a model once for each change of a sweep, on one batch with the same random numbers, and ranks the changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

from torch import Tensor

from hookcli.capabilities.sweep.layout import COLUMNS
from hookcli.capabilities.sweep.trials import SeenModules, Sweep, Trial, trials
from hookcli.capabilities.sweep.verdict import Figures, Ranked, Verdict, same
from hookcli.engine.changed_runs import ChangedRuns, no_module, one_by_one
from hookcli.engine.gradients import again_with_gradients, with_gradients
from hookcli.engine.output_changes import Outputs, floating_leaves, short
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.probing import Edits, of_hooks, parse_edits
from hookcli.engine.run_info import finished
from hookcli.errors import HookcliError, UsageError, kept_if_interrupted, message_of
from hookcli.hooks.edits.base import check_applied
from hookcli.hooks.parts import Select
from hookcli.hooks.session import HookSession
from hookcli.sources import losses
from hookcli.table import Report, Row, Skipped
from hookcli.table.formatting import listed, number
from hookcli.table.meta import Meta, with_notes
from hookcli.table.names import around, in_words
from hookcli.table.tree import Tree
from hookcli.tensors import tree

_LOOKED_FOR = {
    "heads": "no attention was seen, and no class named after it has num_heads or the like and an output projection",
    "experts": (  # another word
        "none was found in a list, or a weight of three dimensions, of a module that is called experts"
    ),
}


@dataclass
class SweepRun:
    """A sweep of a prepared run, under the caller's own `edits`, of the modules that `select` allows.

    The output changes by as much as the one of its tensors that changes most (`Outputs`). `logit` is an index into the
    last dimension of the item `logits`, else of the first floating-point tensor of more than one element (of the first
    item, and of the last position), or `PATH[INDICES]`. The loss is the step's, else the one that the model returns.
    """

    run: PreparedRun
    sweep: Sweep
    logit: str = ""
    edits: Edits = ()
    fastpath: bool = True
    select: Select | None = None
    _rows: list[tuple[Trial, Figures]] = field(default_factory=list)
    _skipped: list[Skipped] = field(default_factory=list)
    _outputs: Outputs | None = None
    _sought: str = ""  # the path of the output that `logit` is a number of

    @property
    def _fastpath(self) -> bool:
        """False for heads, too: PyTorch's fused path calls no function whose heads can be seen."""
        return self.fastpath and self.sweep.of != "heads"

    def report(self) -> Report:
        """Run everything. An interrupt has the report of the runs until then, as its `reports`.

        Raises ModelError where the model fails as it is, UsageError where nothing can be swept.
        """
        run, began = self.run, perf_counter()
        run.feedback.stage(f"running {run.name} as it is")
        base = again_with_gradients(self._as_it_is, run.step)
        assert self._outputs
        self._key = next(key for key in ("logit", "loss", "output_change") if key in base)
        paths = [self._sought] if self._key == "logit" else list(self._outputs.first)
        todo, self._skipped = trials(
            self.sweep, run.model, self._seen, paths, Tree(run.info.get("containers", ())), self.select
        )
        start = perf_counter()
        logit = self.logit if "[" in self.logit else f"logit {self.logit}"
        what = {"logit": logit, "loss": "the loss"}.get(self._key, self._outputs.in_words())
        self._verdict = Verdict(self.sweep, self._outputs, base, self._key, what, noise=0.0)
        self._verdict = replace(self._verdict, noise=self._verdict.effect(self._once(None)))
        each = perf_counter() - start
        run.feedback.stage("sweeping")
        with kept_if_interrupted(lambda: [self._report(began, complete=False)]):
            for trial in one_by_one(todo, each, f"sweep of {run.name}", run.feedback):
                self._try(trial)
        if not self._rows:
            none = _LOOKED_FOR.get(self.sweep.of, "none was found")
            reason = [none, *(f"{in_words(item.fqn)}: {item.reason}" for item in self._skipped)][-1]
            raise UsageError(f"no {self.sweep.of} could be swept: {reason}")
        return self._report(began, complete=True)

    def _as_it_is(self, gradients: bool) -> Figures:
        """The figures of the model without a change, of whose run `_outputs` and `_seen` are; with gradients on or off
        for this run and those after it.
        """
        self._outputs = None
        if gradients:
            self.run = replace(self.run, step=with_gradients(self.run.step, self.run.info))
        return self._once(None, watch=True)

    def _once(self, trial: Trial | None, *, watch: bool = False) -> Figures:
        """Run the model under one change, or as it is, and put all back; `watch` sees what each module returns."""
        figures, head = Figures(), trial.head if trial else None

        def begin(session: HookSession) -> None:
            if watch:
                self._seen = SeenModules(session, self.sweep)
            if head:
                head.begin(session, self.sweep.count)

        runs = ChangedRuns(self.run, self.edits, self._fastpath)
        changes = (trial.edits, trial.weights) if trial else ((), ())
        select = None if watch or head else no_module
        runs.once(partial(self._measure, figures), *changes, begin=begin, select=select)
        check_applied([head.edit] if head else (), ())
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
        outputs = floating_leaves(output)
        if not outputs:
            raise UsageError("the model returns no floating-point tensor, so nothing can be seen to change")
        self._outputs = self._outputs or Outputs.of(output)
        with suppress(*([] if self.run.step.loss else [HookcliError])):
            figures["loss"] = float(self.run.step.loss_of(self.run.step.loss or "loss", output, {})[0])
        if self.logit:
            main = min(outputs.items(), key=lambda item: ("logits" not in item[0], item[1].numel() < 2))
            figures["logit"] = self._logit_of(output, *main)
        if distances := self._outputs.distances(output):
            most = max(distances, key=lambda path: distances[path])
            figures |= {"output": most, "output_change": distances[most]}
            if len(distances) > 1:
                figures["outputs"] = [short(path) for path, distance in distances.items() if distance]

    def _logit_of(self, output: object, place: str, main: Tensor) -> float:
        """The number that `logit` names; `main` is the output, at `place`, of an index alone."""
        path, bracket, index = self.logit.removesuffix("]").rpartition("[")
        with suppress(UsageError, ValueError, IndexError):
            x, at = losses.at_path(output, path=path) if path else main, tuple(map(int, index.split(",")))
            at = at if bracket else (0, -1)[: main.dim() - 1] + at
            if isinstance(x, Tensor) and x.dim() == len(at) and not x.is_complex():
                self._sought = next((where for where, one in tree.leaves(output) if one is x), place)
                return float(x[at])
        there = ", ".join(f"{path}[{tree.shape_text(x)}]" for path, x in tree.leaves(output))
        right = f"{place}[{'0,' * (main.dim() - 1)}42]"
        wrong = f"--logit {self.logit!r}: is outside the output, {there}; give 42, or {right!r}"
        raise UsageError(wrong, option="logit")

    def _report(self, began: float, *, complete: bool) -> Report:
        sweep, base = self.sweep, self._verdict.base
        info: Meta = {**self.run.info, **of_hooks(self._fastpath, parse_edits(self.edits, self.run.model, False), None)}
        turns = f"each {sweep.of[:-1]} {sweep.done} in turn"
        info |= {"sweep": turns, "complete": complete, "seconds": perf_counter() - began}
        ranked = sorted(self._rows, key=lambda row: (row[0].bottleneck, -self._verdict.effect(row[1])))
        copies = self._copies(ranked)
        rows = []
        for place, (trial, figures) in enumerate((row for row in ranked if row[0].fqn not in copies), 1):
            values = {"order": place, "fqn": trial.fqn, "type": trial.type, **trial.part, "output_change": None}
            shown = {key: value for key, value in figures.items() if key != "output"}
            changes = {f"{key}_change": figures[key] - base[key] for key in ("logit", "loss") if key in base}
            rows.append(Row({**values, **shown, **changes, "bottleneck": trial.bottleneck}))
        meta = with_notes(finished(info), *self._notes())
        totals = {"verdict": self._verdict.of(ranked), "runs": len(ranked)}
        skipped = [*self._skipped, *copies.values()]
        return Report("sweep", self.run.name, COLUMNS, rows, meta, totals, skipped, grouping="list")

    def _notes(self) -> Iterator[str]:
        outputs = self._verdict.outputs
        several = f"the output that changes most ({len(outputs.first)} are compared)"
        yield f"Output change: relative l2 distance of {several if len(outputs.first) > 1 else outputs.in_words()}"
        if outputs.aside:
            yield f"not compared: {listed(outputs.aside, 4)} in the output"
        what, noise = self._verdict.what, self._verdict.noise
        if 0 < noise < math.inf:
            yield f"noise: a second run of the unchanged model changes {what} by {number(noise)}"
        if any(trial.bottleneck for trial, _ in self._rows):
            yield "bottleneck: the outputs that change depend on the input only through it; ranked last"
        if self._seen.heads:
            yield from self._seen.heads.calls.notes()

    def _copies(self, ranked: Sequence[Ranked]) -> dict[str, Skipped]:
        """The modules whose change has the same effect as a change of a module around them: nothing else in it counts.

        Bottlenecks are left: whatever is changed there, nothing is left of the input.
        """
        if self.sweep.of != "modules" or self.sweep.quantize:
            return {}
        ways = ((trial.fqn, figures) for trial, figures in ranked if not trial.bottleneck)
        effective = {fqn: figures for fqn, figures in ways if self._verdict.effect(figures) > self._verdict.noise}
        copies = {}
        for fqn, figures in effective.items():
            alike = (o for o in around(fqn) if o in effective and o != fqn and same(figures, effective[o]))
            if outermost := [*alike][-1:]:
                reason = (
                    f"when {self.sweep.done}, it has the same effect as {in_words(outermost[0])}, which contains it"
                )
                copies[fqn] = Skipped(fqn, reason)
        return copies
