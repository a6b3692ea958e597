"""Weights that the program sets anew between steps, so that what was learned is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from hookcli.capabilities.learn.weights.still import first_values, is_trained
from hookcli.tensors.torch_private import version

_AWAY, _TIMES = 0.5, 2.0  # of the size of a weight; times the largest steps on the way: what an optimizer can't do
_COMPARED = 64  # passes
_BACK, _MANY = 0.1, 8  # of the way from the first values, that an average leaves; values

Values = Mapping[str, Tensor]
"""A few values of each of some weights, by name: of parameters with two dimensions or more."""


@dataclass
class Watched:
    """One weight at each backward pass, recorded or not: something else than steps may write to it."""

    fqn: str
    weight: ref[Tensor]
    changes: int
    """The in-place changes until the last pass."""
    first: Tensor
    """Its values at the first pass."""
    before: Tensor | None = None
    """Its values at the last pass, once there was one after more changes than usual: before, none are taken."""
    usual: int = 0
    """The least number of in-place changes between two passes that had any."""
    left: list[Tensor] = field(default_factory=list)
    """For each pass after more changes than that: `way_left` from the first pass's values."""
    away: list[tuple[Tensor, float]] = field(default_factory=list)
    """For each such pass: how far the values have moved since the pass before, as a share of their size, and how many
    steps may lie between the two, by the number of changes: steps that are not followed tell of no pass."""

    @classmethod
    def of(cls, module: nn.Module) -> Watched | None:
        """The first weight of a model that is trained; None if there is none."""
        trained = ((fqn, p) for fqn, p in module.named_parameters() if is_trained(p) and p.dim() > 1)
        fqn, weight = next(trained, ("", None))
        if weight is None or weight.is_inference() or not len(values := first_values(weight)):
            return None
        return cls(fqn, ref(weight), version(weight), values)

    def note_pass(self) -> None:
        """Note a further backward pass. Waits for nothing; after no more changes than usual, it only counts them."""
        weight = self.weight()
        if weight is None or not (number := version(weight) - self.changes):
            return
        self.changes += number
        self.usual = min(self.usual or number, number)
        more, before = number > self.usual, self.before
        if not more and before is None:
            return
        self.before = now = first_values(weight)
        if more and before is not None and before.shape == now.shape and len(self.left) < _COMPARED:
            self.left.append(way_left(self.first, before, now))
            self.away.append(((now - before).norm() / before.norm(), number / self.usual))


@dataclass
class Overwritten:
    """How often a program has set the weights of a model anew, between steps of the same optimizer."""

    watched: Watched | None = None
    times: int = 0
    """How often a weight was seen to have moved farther than the optimizer can move it."""
    place: str = ""
    away: float = 0.0
    """By how much of its size this one has moved, the last time."""
    back: int = 0
    """How often the weights were seen to be (next to) the first step's again, after they had been moved."""
    nearly: bool = False
    """True if they did not equal these at one of these times."""
    at: int = 0
    """The last recorded step by which one or the other was seen."""
    moved: dict[str, float] = field(default_factory=dict)
    """The largest share of its size by which a step has moved each weight."""
    optimizer: ref[Optimizer] | None = None
    optimizer_steps: float = 0.0
    """The number of steps in its state."""
    several: bool = False
    """True if there was more than one optimizer, or one began anew: then weights may, too, on purpose."""
    _first: Values = field(default_factory=dict)
    _left: Values = field(default_factory=dict)
    """The values that the last recorded step has left, if that is known."""
    _step: int = 0

    def note_pass(self, module: nn.Module) -> None:
        """A backward pass begins, of a recorded step or another. Waits for nothing."""
        if self.watched:
            self.watched.note_pass()
        else:
            self.watched = Watched.of(module)

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """Note the optimizer of a recorded step; may wait for an accelerator."""
        steps, before = steps_of(optimizer), self.optimizer_steps
        anew = steps < before or (self.optimizer is not None and self.optimizer() is not optimizer)
        self.several, self.optimizer_steps = self.several or anew, steps
        self.optimizer = ref(optimizer)

    def fields(self, step: int, began: Values, taken: Values, left: Values) -> dict[str, Any]:
        """The fields of a line, with a step that began with these values, and left others; may wait for an accelerator.

        `taken`: those with which its optimizer was about to step.
        """
        if self.several:
            return {}
        if not same(began, taken):  # which the program exchanges within the step, as where they are rounded in forward
            self._left = {}
            return {}
        for fqn in began.keys() & left.keys():
            self.moved[fqn] = max(self.moved.get(fqn, 0.0), distance(began[fqn], left[fqn]))
        self._first = self._first or began
        self.note_between(step, began)
        self.note_passes(step)
        self._left, self._step = left, step
        if not (self.times or self.back):
            return {}
        most = self.moved.get(self.place, 0.0)
        over = {"overwritten": self.times, "weight": self.place, "away": self.away, "moved": most}
        return {**over, "restored": self.back, "nearly": self.nearly, "written_at": self.at}

    def note_between(self, step: int, began: Values) -> None:
        """Note what has moved since the last recorded step."""
        if not self._left or same(began, self._left):
            return
        if self.returned(way_back(self._first, self._left, began)):
            self.back, self.at = self.back + 1, step
        away = {fqn: distance(self._left[fqn], now) for fqn, now in began.items() if fqn in self._left}
        place = max(away, key=away.__getitem__, default="")
        most = (step - self._step) * max(self.moved.values())
        if place and away[place] > max(_AWAY, _TIMES * most):
            self.times, self.at, self.place, self.away = self.times + 1, step, place, away[place]

    def note_passes(self, step: int) -> None:
        """Note what has moved between passes, recorded or not."""
        if self.watched is None or not (most := self.moved.get(self.watched.fqn, 0.0)):
            return
        moved = [(float(share), steps) for share, steps in self.watched.away]
        away = [x for x, steps in moved if math.isfinite(x) and x > max(_AWAY, _TIMES * most * steps)]
        if len(away) > self.times:
            self.times, self.at, self.place, self.away = len(away), step, self.watched.fqn, away[-1]
        if (back := sum(map(self.returned, map(float, self.watched.left)))) > self.back:
            self.back, self.at = back, step

    def returned(self, left: float) -> bool:
        """True if next to nothing is `left` of the way from the first values, as the program has set weights."""
        self.nearly = self.nearly or 0 < left <= _BACK
        return left <= _BACK


def steps_of(optimizer: Optimizer) -> float:
    """The number of steps in the state of an optimizer that counts them, as Adam does; else 0."""
    state = next(iter(optimizer.state.values()), None)
    return float(state.get("step", 0)) if isinstance(state, dict) else 0.0


def way_left(first: Tensor, before: Tensor, now: Tensor) -> Tensor:
    """The distance of values from the first ones, as a share of what it was before; NaN for 0 and 0. Waits for nothing.

    1 for few values that are not the same: they may come near by chance.
    """
    share: Tensor = (now - first).norm() / (before - first).norm()
    return share if now.numel() >= _MANY else torch.where(share > 0, 1.0, share)


def way_back(first: Values, before: Values, now: Values) -> float:
    """The largest `way_left` of weights that had moved; infinity for none. Waits for an accelerator."""
    alike = (fqn for fqn, x in now.items() if all(fqn in of and of[fqn].shape == x.shape for of in (first, before)))
    shares = [float(way_left(first[fqn], before[fqn], now[fqn])) for fqn in alike]
    return max((share for share in shares if not math.isnan(share)), default=math.inf)


def same(a: Values, b: Values) -> bool:
    """True if all values are the same. Waits for an accelerator."""
    return a.keys() == b.keys() and all(torch.equal(a[fqn], b[fqn]) for fqn in a)


def distance(before: Tensor, now: Tensor) -> float:
    """How far values have moved, as a share of their size; 0 where that is not known. Waits for an accelerator."""
    if before.shape != now.shape or not before.numel():
        return 0.0
    size = float(before.double().norm())
    share = float((now.double() - before.double()).norm()) / size if size else 0.0
    return share if math.isfinite(share) else 0.0
