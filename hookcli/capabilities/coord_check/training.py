"""Trains one model on one batch for a few steps, and measures what each module returns before and after each.

Sizes are defined as in the coordinate check of Yang et al. 2022 ("Tensor Programs V", arXiv 2203.03466, appendix D.1):
the mean absolute value of an output's elements, and of their change since initialization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookcli.capabilities.coord_check.optimizers import MakeOptimizer
from hookcli.capabilities.coord_check.slopes import named
from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import copied
from hookcli.errors import UserCode
from hookcli.hooks.events import HookEvent
from hookcli.hooks.parts import Select, uncompiled
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.unmeasured import never_called
from hookcli.sources.losses import floating
from hookcli.table.meta import Meta
from hookcli.tensors.chunks import unnested
from hookcli.tensors.devices.launch import wide
from hookcli.tensors.random_state import accelerators, random_states, set_random_states
from hookcli.tensors.tree import type_text

AGREES = 1e-3  # relative: two trainings alike, in another order of sums


class Figures(NamedTuple):
    """The size of a module's outputs, and the size of their change since initialization."""

    size: float
    change: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.size) and math.isfinite(self.change)


@dataclass
class Trained:
    """The figures of one training by module, in the order of first calls: at initialization and after each step.

    `losses` has the loss of each of these forwards, the last one also if it is not finite; `rate` is the learning rate.
    `broken`: what was not finite in the step after the last that has figures; "" if all steps have some. `unseen`: why
    modules have none.
    """

    width: float
    seed: int
    figures: dict[str, list[Figures]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    broken: str = ""
    losses: list[float] = field(default_factory=list)
    rate: float | None = None

    @property
    def steps(self) -> int:
        """The number of steps after which there are figures; -1 if not even the initial ones are finite."""
        return min(map(len, self.figures.values()), default=0) - 1

    def begin(self, types: Mapping[str, str], initial: Mapping[str, Figures]) -> None:
        """Choose the modules to follow, among modules of these `types`."""
        self.types = types
        self.unseen |= dict.fromkeys(types, "returns no floating-point tensor")
        self.unseen |= dict.fromkeys(initial, "its output is not finite at initialization")
        self.figures = {fqn: [] for fqn, of_module in initial.items() if of_module.finite}
        self.unseen = {fqn: reason for fqn, reason in self.unseen.items() if fqn not in self.figures}

    def add(self, figures: Mapping[str, Figures], reshaped: Collection[str], loss: float) -> None:
        """Add the figures of a forward, or say what is not finite; leave out modules that can't be followed on."""
        self.losses.append(loss)
        for fqn in [fqn for fqn in self.figures if fqn in reshaped or fqn not in figures]:
            self.unseen[fqn] = "its output has other shapes in other steps"
            del self.figures[fqn]
        broken = [f"{named(fqn)}'s output" for fqn in self.figures if not figures[fqn].finite]
        self.broken = [*broken, "" if math.isfinite(loss) else "the loss"][0]
        for fqn, of_module in self.figures.items() if not self.broken else ():
            of_module.append(figures[fqn])


class Outputs:
    """The outputs of a model's modules in one forward after another, compared with the first forward's.

    The first forward's are kept: as many bytes as all modules return. All floating-point tensors of an output count, of
    all calls. `reshaped`: the modules that returned other shapes later on.
    """

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self.reshaped: set[str] = set()
        self._order: dict[str, int] = {}
        self._first: dict[tuple[str, int, int], Tensor] = {}
        self._sums: dict[str, list[tuple[int, Tensor]]] = {}
        self._begun = False

    def see(self, event: HookEvent) -> None:
        """Add what a module has returned; nothing waits for a device."""
        assert event.module is not None
        self.types.setdefault(event.fqn, type_text(event.module))
        self._order.setdefault(event.fqn, event.index)
        for number, output in enumerate(floating(event.output)):
            place, x = (event.fqn, event.call, number), output.detach()
            x = unnested(x) if x.is_nested else x if x.layout is torch.strided else x.to_dense()
            if not self._begun:
                self._first[place] = x.clone()  # what follows may write into it
            first = self._first.get(place)
            if first is None or first.shape != x.shape:
                self.reshaped.add(event.fqn)
            elif x.numel():
                sums = [part.abs().sum(dtype=wide(x.device)) for part in (x, x - first)]
                self._sums.setdefault(event.fqn, []).append((x.numel(), torch.stack(sums)))

    def figures(self) -> dict[str, Figures]:
        """The figures of each module in the last forward, in the order of first calls."""
        by_module = {}
        for fqn in sorted(self._sums, key=self._order.__getitem__):
            counts, sums = zip(*self._sums[fqn], strict=True)
            by_module[fqn] = Figures(*(torch.stack(sums).sum(0) / sum(counts)).tolist())
        self._sums, self._begun = {}, True
        return by_module


@dataclass(frozen=True)
class Plan:
    """The optimizer of each training, its number of steps, and the modules that are looked at (None: all).

    With `follows` False modules are not looked at: a training has its losses alone. `rate`: the learning rate that was
    asked for.
    """

    make_optimizer: MakeOptimizer
    steps: int
    select: Callable[[nn.Module], Select | None] = lambda model: None
    follows: bool = True
    rate: float | None = None

    def train(self, run: PreparedRun, width: float, seed: int, place: str) -> Trained:
        """Train the run's model on its inputs, all steps or until something is not finite.

        Each forward draws the same random numbers, so that outputs change by the weights alone. Raises ModelError where
        the model, its loss or the optimizer fails, which begins with the `place`.
        """
        model, outputs, result = run.model, Outputs(), Trained(width, seed, rate=self.rate)
        optimizer: torch.optim.Optimizer | None = None
        devices = accelerators(model, run.inputs)
        states = random_states(devices)
        with run.step.mode(), uncompiled(model), UserCode(partial(failure.crashed, model, {}, place=place)):
            for step in range(self.steps + 1):
                set_random_states(devices, states)
                roots, loss = self.forward(run, outputs, result)
                figures = outputs.figures()
                if step == 0:
                    result.begin(outputs.types, figures)
                result.add(figures, outputs.reshaped, loss)
                if result.broken or step == self.steps:
                    break
                optimizer = optimizer or self.make_optimizer(model)  # lazy parameters exist by now
                optimizer.zero_grad()
                torch.autograd.backward(roots)
                optimizer.step()
        return result

    def forward(self, run: PreparedRun, outputs: Outputs, result: Trained) -> tuple[Sequence[Tensor], float]:
        """Run the model and its loss under hooks that are gone after it; the roots of backward, and the loss."""
        info: Meta = {}
        session = HookSession(run.model, select=self.select(run.model), callers_run=True)
        with session:
            if self.follows:
                session.forward(outputs.see)
            args, kwargs = arguments(copied(run.inputs))
            roots, _ = run.step.start(session, run.model(*args, **kwargs), info)
        if not result.types:
            result.unseen = {one.fqn: one.reason for one in never_called(session)}
        session.release()
        run.info["loss"] = info["loss"]
        return roots, info["loss_value"] or 0.0
