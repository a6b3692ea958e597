"""A step of a model that is looked at: hooks on its modules while it runs, and what they saw."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli import registry
from hookcli.engine.run_info import describe_run
from hookcli.hooks.core import CallbackGuard
from hookcli.hooks.events import HookEvent
from hookcli.hooks.grad_arrivals import GradArrivals
from hookcli.hooks.session import HookSession
from hookcli.hooks.unhooked import compiled_parts
from hookcli.probes.base import Probe, StatsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.record.file.record import Window
from hookcli.record.observe import updates
from hookcli.record.observe.judging import judged
from hookcli.record.observe.losses import Losses
from hookcli.record.observe.models import Watched
from hookcli.record.observe.names import Names
from hookcli.record.observe.parameters import ParameterRows
from hookcli.record.observe.plan import Plan
from hookcli.record.observe.rows import merged
from hookcli.record.observe.scales import Scales
from hookcli.record.observe.search import Seen
from hookcli.report import Report, Skipped
from hookcli.tensors import tree
from hookcli.tensors.stats import Pending, measure, resolve

# Of more forwards in one step (a loop over time, a rollout) the first ones are looked at.
MOST_FORWARDS = 64


class Place(NamedTuple):
    """Where in a program a window is, as the record has it; `kept`: whether it goes there."""

    phase: str
    step: int
    forward: int | None
    kept: bool


class OpenWindow:
    """From the first forward of a step on. Keeps the model alive until `close`."""

    def __init__(self, watched: Watched, model: nn.Module, plan: Plan, safe: CallbackGuard, place: Place) -> None:
        self.watched = watched
        self.model = model
        self.phase, self.step, self.forward, self.kept = place.phase, place.step, place.forward, place.kept
        self.forwards, self.looked_at = 1, 0
        self.busy = False
        self.complete = True
        self.stepped: set[int] = set()
        self.seconds: float | None = None
        self.notes: dict[str, None] = {}
        self.name = Names(model)
        self.scales = Scales()
        self._searched: dict[str, int] = {}
        self._inputs: list[Pending] = []
        self._plan = plan
        self._hidden = compiled_parts(model) if not watched.blind else {}
        self.losses = Losses(model)
        self._reach = GradArrivals()
        self._parameters = ParameterRows(model, self.name, self._matches)
        self._meta: dict[str, Any] = {}
        self.session = HookSession(
            nn.Identity() if watched.blind else model, select=self._selects, guard=safe, callers_run=True
        )
        if plan.match is not None and not any(self._matches(fqn) for fqn in _fqns(model)):
            watched.note(f"--match {plan.match}: no module or parameter of it has such a name")
        here = [name for name in plan.probes if name != "updates" and (self.phase == "train" or name != "grads")]
        self.probes = [self._probe(name) for name in here]
        if plan.check and self.phase == "train" and not watched.blind:  # before the others, whose hooks it would find
            self.probes.insert(0, InventoryProbe(backward=True))

    # While it is open.

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A forward begins: hooks go on."""
        self.busy = True
        self.session.modules.thread = threading.get_ident()
        if not self.looked_at:
            self.session.__enter__()
            if self._plan.first_bad:
                self.session.forward_pre(self._take_input)
            for probe in self.probes:
                probe.attach(self.session)
        else:
            self.session.modules.attach()
        self.looked_at += 1
        if module is self.model:
            self.session.modules.enter(args)

    def end(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """It is over: they come off, but for those on tensors."""
        self.abandon()
        self._reach.watch(output)
        self._meta = self._meta or describe_run(self.model, (args, kwargs)).to_meta()

    def abandon(self) -> None:
        """It is over, whatever way it ended."""
        self.busy = False
        self.session.modules.detach()

    @property
    def sees_gradients(self) -> bool:
        """Whether it would notice a backward pass through the model."""
        return bool(self._reach or self.session.tensor_grads.hooks.handles)

    @property
    def arrived(self) -> int:
        """How many gradients have arrived in it."""
        return self.session.arrived + self._reach.times

    @property
    def forlorn(self) -> bool:
        """Whether what it waits for can't come any more: the graph of its forwards is gone."""
        return not self.watched.optimizers() and self.session.tensor_grads.hooks.gone() and self._reach.gone()

    def gets_gradients(self, inputs: set[int] | None) -> bool:
        """Whether a pass through the model leaves gradients in it, for these inputs alone if not None, by identity.

        Of a model without an optimizer every pass counts, though it may be frozen.
        """
        needing = [id(p) for p in self.model.parameters() if p.requires_grad]
        found = bool(needing) if inputs is None else not inputs.isdisjoint(needing)
        return found or not self.watched.optimizers()

    def differentiated(self, terms: Sequence[Tensor] | None, scaler: Any, *, counts: bool) -> None:
        """A backward pass through this model was of the sum of these numbers, as they were before a GradScaler.

        None: it was of something else. `counts`: whether it is the loss of this model's gradients.
        """
        for probe in self.probes:
            if isinstance(probe, GradsProbe):
                self.scales.passed(len(probe.pending()), scaler)
        if counts and terms is not None:
            self.losses.add(terms)
        elif counts:
            self.notes[_NO_NUMBER] = None

    def take_gradients(self, optimizer: Optimizer | None = None) -> None:
        """The gradients of parameters as they are now; those that an optimizer is about to use, or used."""
        if "grads" in self._plan.probes:
            self._parameters.take_gradients(optimizer)

    def take_updates(self, snapshot: updates.Snapshot) -> None:
        """What a step has done to parameters; of optimizers that step by others, what the outermost has."""
        self._parameters.take_updates(snapshot)

    # For the search.

    def unsearched(self) -> Iterator[tuple[str, Probe, Seen, int]]:
        """What was seen: of each sort all of it, and how much of that is new since it was last asked for."""
        for probe in self.probes:
            what = "gradient" if isinstance(probe, GradsProbe) else "output"
            copes = what == "gradient" and self.scales.any  # the GradScaler does, with overflows
            if isinstance(probe, StatsProbe) and not copes:
                yield from self._new(what, probe, probe.pending())
                if what == "gradient":
                    yield from self._new("parameter gradient", probe, self._parameters.gradients())

    def _new(self, what: str, probe: Probe, seen: Seen) -> Iterator[tuple[str, Probe, Seen, int]]:
        key = f"{probe.name} {what}"
        new = len(seen) - self._searched.get(key, 0)
        self._searched[key] = len(seen)
        if new > 0:
            yield what, probe, seen, new

    def _take_input(self, event: HookEvent) -> None:
        if event.fqn == "":
            self._inputs += [measure(x) for _, x in tree.arguments(event.args, event.kwargs)]

    def input_is_bad(self) -> bool:
        """Whether what the model was given, by position, holds values that are not finite."""
        return any(stats.nan or stats.inf for stats in resolve(self._inputs))

    # When it is over.

    def close(self) -> Window:
        """Take all hooks off, and tell what they saw."""
        self.discard()
        reports = self.reports()
        if any(row.get("sharded") for report in reports for row in report.rows):
            self.notes[_SHARDED] = None
        return Window(
            model=self.watched.tally.model,
            phase=self.phase,
            step=self.step,
            reports=reports,
            forward=self.forward,
            forwards=self.forwards,
            watched=self.looked_at,
            losses=self.losses.all(),
            seconds=self.seconds,
            notes=(*self.notes, *self.scales.notes()),
            complete=self.complete,
        )

    def left(self, why: str = "") -> None:
        """Its step does not come to an end: for this reason, or because the program ended or went on without it."""
        self.complete = False
        self.notes[why or _LEFT] = None

    def discard(self) -> None:
        """Take all hooks off, and tell nothing."""
        self._reach.remove()
        self.session.__exit__(None, None, None)

    def reports(self) -> list[Report]:
        """What was seen until now. On an accelerator this waits for it."""
        meta = self._meta | {"phase": self.phase, "step": self.step, "complete": self.complete}
        by_probe = {probe.name: self._report(probe, meta) for probe in self.probes}
        verdict = [judged(self.watched.tally.model, by_probe, meta)] if "inventory" in by_probe else []
        reports = [report for name, report in by_probe.items() if name != "inventory"] + verdict
        if "updates" in self._plan.probes and (rows := self._parameters.update_rows()):
            skipped = self._parameters.unmoved(self.watched.optimizers())
            reports.append(Report("updates", self.watched.tally.model, updates.COLUMNS, rows, meta, {}, skipped))
        return reports

    def _report(self, probe: Probe, meta: dict[str, Any]) -> Report:
        found = probe.report(self.watched.tally.model, meta)
        if not isinstance(probe, StatsProbe):
            return found
        if isinstance(probe, GradsProbe):
            found = replace(found, rows=self.scales.undone(found.rows))
        found = merged(found, self.name)
        seen = {row.fqn for row in found.rows}  # the wrapper of what is compiled is
        hidden = [Skipped(name, reason) for fqn, reason in self._hidden.items() if (name := self.name(fqn)) not in seen]
        if isinstance(probe, GradsProbe):
            rows = [*found.rows, *self._parameters.gradient_rows()]
            return replace(
                found, rows=rows, skipped=[*found.skipped, *self._parameters.without_gradient(self.complete), *hidden]
            )
        return replace(found, skipped=[*found.skipped, *hidden])

    # What is looked at.

    def _probe(self, name: str) -> Probe:
        return GradsProbe(of="outputs") if name == "grads" else registry.load("probes", name)()

    def _selects(self, fqn: str, module: nn.Module) -> bool:
        return fqn not in self._hidden and self._matches(fqn)

    def _matches(self, fqn: str) -> bool:
        return self._plan.match is None or fnmatchcase(self.name(fqn), self._plan.match)


def _fqns(model: nn.Module) -> Iterator[str]:
    yield from (fqn for fqn, _ in model.named_modules())
    yield from (fqn for fqn, _ in model.named_parameters())


_NO_NUMBER = "backward() was called on a tensor that is not a single number: it is not part of the loss"
_SHARDED = "parameters are sharded: figures of their gradients, weights and updates are of this rank's shard alone"
_LEFT = "the step was not finished: the program ended before, or went on to others"
