"""What became of a model's parameters over the recorded steps of a training. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hookcli.table.formatting import counted
from hookcli.table.names import around, owner_of
from hookcli.table.rates import RateCourse
from hookcli.table.row import Row
from hookcli.table.stats import figures_of, spacing

_MATERIAL = 1e-3  # of the largest of its module; a smaller gradient may be rounding, as of a bias before BatchNorm
LEAST, SPAN = 5, 9  # recorded steps, and steps from the first to the last of them; momentum takes a few to build up
LEAST_UNHELD = 3
LEAST_RESTING = 3
_END = 0.1  # of all steps: a schedule may well end at a learning rate of 0
_KEPT = 512  # steps of a parameter that has not moved
_CLIPPED = 0.01  # of the norm of all gradients
_CERTAIN = 1e-4  # of the weights; a smaller update may leave all figures as they are


@dataclass(frozen=True, slots=True)
class ParameterFacts:
    """What happened to a parameter in one step.

    `reached`: a backward pass left a gradient in it. `held`: an optimizer has it. `rate` is the learning rate with
    which one stepped it, None if none did or that is unknown. `copied`: its optimizer keeps a copy in more bits.
    `waits`: the name of an optimizer that has it and has made no step yet; "" if one has. `optimizer`: the name of the
    one that has it, with a number if it is not the first of its name.
    """

    fqn: str
    reached: bool
    held: bool
    rate: float | None = None
    copied: bool = False
    waits: str = ""
    optimizer: str = ""


@dataclass(slots=True)
class ParameterCourse:
    """A parameter over the recorded steps.

    `pushed` are the steps in which an optimizer was to move it, each with the learning rate.
    """

    dtype: str = ""
    numel: int = 0
    held: bool = False
    copied: bool = False
    reached: int = 0
    moved: bool = False
    waits: str = ""
    """The optimizer that has it, and has not made a step so far; "" if one has."""
    pushed: list[tuple[int, float]] = field(default_factory=list)
    gradient: float = 0.0
    """The L2 norm of its gradient in the last of these steps."""
    rms: float = 0.0
    """The root mean square of its values."""
    _values: tuple[float | None, ...] = ()
    _updated: int | None = None
    """The last recorded step, if its update was large enough to be seen; else None."""
    undone: list[int] = field(default_factory=list)
    """The recorded steps whose update was gone as the next one began; empty if any of them has stayed."""
    _stayed: bool = False

    def look(self, row: Row) -> bool:
        """Compare its values, as a recorded step began, with those at the recorded step before. Returns if it moved."""
        assert row.stats is not None
        values = figures_of(row.stats)
        moved = bool(self._values and self._values != values)
        self.moved = self.moved or moved
        self._stayed = self._stayed or moved
        if self._stayed:
            self.undone.clear()
        elif self._updated is not None and len(self.undone) < _KEPT:
            self.undone.append(self._updated)
        self._updated = None
        self.dtype, self.numel, self.rms, self._values = row["dtype"], row.stats.numel, row.stats.rms, values
        return moved

    def take(self, facts: ParameterFacts) -> None:
        """Take what is known of it in one step."""
        self.reached += facts.reached
        self.held = facts.held
        self.copied = self.copied or facts.copied
        self.waits = facts.waits

    def note_update(self, step: int, change: float) -> None:
        """Note the L2 norm of the change that an optimizer made in this step."""
        self.moved = self.moved or change != 0
        if self.numel > 1 and change > _CERTAIN * self.rms * math.sqrt(self.numel):  # one number may rest at its bound
            self._updated = step

    def push(self, step: int, rate: float | None, gradient: float) -> None:
        """An optimizer was to move it in this step. What is kept of long runs does not grow."""
        self.pushed.append((step, 1.0 if rate is None else rate))
        self.gradient = gradient
        if self.moved:
            self.pushed.clear()
        elif len(self.pushed) > _KEPT:
            del self.pushed[1 : _KEPT // 2]

    @property
    def still(self) -> bool:
        """True if an optimizer was to move it often enough to tell, and never did."""
        if self.moved or not self.held or self.copied:
            return False
        rates = [rate for _, rate in self.pushed]
        rises = len(rates) > 1 and rates[-1] > max(rates[-2], 2 * rates[0])  # a warm-up that is not over
        full = [step for step, rate in self.pushed if rate >= max(rates) / 2]
        return not rises and len(full) >= LEAST and full[-1] - full[0] + 1 >= SPAN

    @property
    def rounds_away(self) -> bool:
        """True if updates are lost as its values are rounded, by what a step of this rate usually is."""
        rate = self.pushed[-1][1]
        return self.numel > 0 and 0 < rate * min(1.0, self.gradient / math.sqrt(self.numel)) < self.spacing

    @property
    def spacing(self) -> float:
        """The distance between two numbers of its dtype near its values; 0 if that is unknown."""
        return spacing(self.dtype, self.rms)


@dataclass(slots=True)
class TrainingCourse:
    """The recorded steps of one model's training, as far as their gradients are known."""

    steps: int = 0
    uncalled: set[str] | None = None
    """The modules that ran in no step; None before the first."""
    idle: set[str] = field(default_factory=set)
    """The modules that did not run in some step."""
    in_a_row: int = 0
    """The largest number of steps that followed each other."""
    _row: tuple[int, int] = -1, 0  # the last step, and how many before it followed each other, with it
    parameters: dict[str, ParameterCourse] = field(default_factory=dict)
    zero: int = 0
    """The number of steps in which every gradient was zero, and that were not `idles`."""
    idles: bool = False  # True in a step in which another model learns alone
    rates: dict[str, RateCourse] = field(default_factory=dict)
    """The learning rates of each optimizer; "" for all together."""
    cleared: int = 0
    """The number of steps that optimizers made after the program had cleared every gradient."""
    stepped: int = 0
    """The number of steps that optimizers made."""
    skipped: int = 0
    """The number of the last steps that a GradScaler skipped, with no other between them that moved a parameter."""
    span: int = 0
    """The number of steps from the first to the last of these, recorded or not."""
    _first: int | None = None
    unused: str = ""
    """That no optimizer has used the gradients: "SGD made no step after any of 60 backward passes"; "" if one has."""
    has_optimizers: bool = False
    """True if any optimizer has stepped in the program."""
    stale: str = ""
    """An optimizer whose parameters no module has any more: "SGD has 2 parameters ..."; "" if there is none."""
    idle_optimizer: str = ""
    """An optimizer, if none had any gradient in its last step: "AdamW has 72 parameters ..."; "" if one had."""
    without_gradient: list[str] = field(default_factory=list)
    """The parameters of modules that ran, without a gradient in any step, of which `used_by_loss` may tell more."""
    used_by_loss: dict[str, str] = field(default_factory=dict)
    """How the loss is computed from some of these: by "tensors", though autograd does not see it, or "" if it isn't."""
    followed: int = 0
    """The number of steps in which such parameters were followed to the loss."""
    left: float | None = None
    """The norm of all gradients as backward left them in the last step; NaN if not finite, None if unknown."""
    unfinished: int = 0
    """The number of backward passes in the last step, if no optimizer has made it; else 0."""
    scaled: bool = False
    """True if a GradScaler has scaled the loss of the last step, and handles what overflows."""
    finite_at: dict[str, int] = field(default_factory=dict)
    """By parameter and buffer, the last recorded step that began with finite values of it."""
    ruined: dict[str, int] = field(default_factory=dict)
    """How many values of each parameter the update of the last step made NaN or infinite by a finite gradient."""
    ruined_at: dict[str, int] = field(default_factory=dict)
    """By parameter, the last recorded step that it began with finite values, and whose update left it without."""
    updated_at: dict[str, int] = field(default_factory=dict)
    """By parameter, the last recorded step that it began with finite values, and whose update left them finite."""

    def note_unused(self, optimizers: Sequence[str], passes: int) -> None:
        """Note that these optimizers, by name, have made no step after so many backward passes."""
        if optimizers and passes >= LEAST:
            self.unused = f"{optimizers[0]} made no step after any of {passes:,} backward passes"

    @property
    def tells(self) -> bool:
        """True if something is known of the steps."""
        return bool(self.steps or self.skipped or self.unused)

    @property
    def reached(self) -> set[str]:
        """The parameters in which some backward pass left a gradient."""
        return {fqn for fqn, course in self.parameters.items() if course.reached}

    @property
    def follows(self) -> bool:
        """True if the next step is to find out how the loss is computed from parameters without a gradient."""
        return self.followed < LEAST and not self.used_by_loss.keys() >= set(self.without_gradient)

    def note_lost(self, fqns: Iterable[str]) -> None:
        """Note the parameters that got no gradient in this step."""
        excused = self.reached
        uncalled = self.uncalled or set()
        self.without_gradient = [fqn for fqn in fqns if fqn not in excused and owner_of(fqn) not in uncalled]

    def look(self, step: int, inventory: Sequence[Row]) -> None:
        """Take the inventory of a recorded step: the values of parameters as it began, and which modules ran."""
        self.ruined = {}
        idle = {row.fqn for row in inventory if row["kind"] == "never_called"}
        self.uncalled = idle if self.uncalled is None else self.uncalled & idle
        self.idle |= idle
        for row in inventory:
            if row["kind"] in ("parameter", "buffer") and _is_finite(row):
                self.finite_at[row.fqn] = step
            if row["kind"] != "parameter" or not row.stats:
                continue
            if self.parameters.setdefault(row.fqn, ParameterCourse()).look(row):
                self.skipped = 0

    def note_ruined(
        self, step: int, gradients: Iterable[Row], updates: Iterable[Row], ruined: Mapping[str, int]
    ) -> None:
        """Note which parameters the updates of a finished step left finite; `ruined`: how many values of others."""
        finite = {row.fqn for row in gradients if row.get("kind") == "parameter" and _is_finite(row)}
        self.ruined = {fqn: number for fqn, number in ruined.items() if fqn in finite}
        began_finite = {row.fqn for row in updates if self.finite_at.get(row.fqn) == step}
        self.ruined_at |= dict.fromkeys(began_finite & ruined.keys(), step)
        self.updated_at |= dict.fromkeys(began_finite - ruined.keys(), step)

    def add(self, step: int, facts: Iterable[ParameterFacts], gradients: Iterable[Row], updates: Iterable[Row]) -> None:
        """Take the gradients of a finished step, and the updates that optimizers made."""
        self.steps += 1
        self.skipped = 0
        last, number = self._row
        self._row = step, number + 1 if step <= last + 1 else 1
        self.in_a_row = max(self.in_a_row, self._row[1])
        grads = {row.fqn: row for row in gradients if row.get("kind") == "parameter" and row.stats and row["numel"]}
        changes = {row.fqn: row["update"] for row in updates}
        material = _material(grads)
        self.zero += _all_zero(grads) and not self.idles
        rates: dict[str, dict[str, float | None]] = {}
        arrived = set[str]()
        for fact in facts:
            course = self.parameters.setdefault(fact.fqn, ParameterCourse())
            course.take(fact)
            if fact.fqn not in changes:
                continue
            for optimizer in ("", fact.optimizer):
                rates.setdefault(optimizer, {})[fact.fqn] = fact.rate
            arrived |= {fact.fqn} if fact.reached else set()
            course.note_update(step, changes[fact.fqn])
            if fact.fqn in material and fact.rate != 0:
                course.push(step, fact.rate, grads[fact.fqn]["l2"])
        if rates:
            self._note_rates(step, rates, arrived, changes)
        if self._first is not None:
            self.span = step + 1 - self._first
        self.cleared += bool(arrived) and not grads and not any(changes.values())

    def _note_rates(
        self,
        step: int,
        rates: Mapping[str, Mapping[str, float | None]],
        arrived: set[str],
        changes: Mapping[str, float],
    ) -> None:
        """Take the learning rates of a step, by optimizer and parameter. A gradient `arrived` in some of these."""
        self.stepped += 1
        if self._first is None:
            self._first = step
        for optimizer, its in rates.items():
            trains = not arrived & its.keys() or any(changes[fqn] for fqn in its)
            self.rates.setdefault(optimizer, RateCourse()).add(step, its, trains=trains)

    def still(self) -> dict[str, ParameterCourse]:
        """The parameters that optimizers never moved, though they were to."""
        return {fqn: course for fqn, course in self.parameters.items() if course.still}

    def undone(self) -> dict[str, ParameterCourse]:
        """The parameters that optimizers moved, and that were where they had been as each next recorded step began."""
        often = {fqn: course for fqn, course in self.parameters.items() if len(course.undone) >= LEAST}
        return {fqn: one for fqn, one in often.items() if one.undone[-1] - one.undone[0] + 1 >= SPAN}

    def waiting(self) -> dict[str, list[str]]:
        """The parameters that get gradients and keep their values, by the optimizer that has never used them."""
        waiting: dict[str, list[str]] = {}
        for fqn, course in self.parameters.items():
            if course.waits and course.reached >= LEAST and not course.moved:
                waiting.setdefault(course.waits, []).append(fqn)
        return waiting

    def unheld(self) -> list[str]:
        """The parameters that get gradients, that no optimizer has, and that nothing else moves.

        None where the program itself moves some, perhaps from copies in more bits, or has no optimizer at all.
        """
        without = {fqn: course for fqn, course in self.parameters.items() if course.reached and not course.held}
        if not self.has_optimizers or self.steps < LEAST_UNHELD or any(course.moved for course in without.values()):
            return []
        return list(without)

    def is_sample(self, step: int) -> bool:
        """True if steps until this one were not recorded."""
        return self.steps <= step

    def in_recorded_steps(self, fqn: str, step: int) -> str:
        """Words on the recorded steps, if others may do something else with a module; "" if not."""
        words = f" in the {counted(self.steps, 'recorded step')}".replace(" 1 ", " ")
        return words if self.may_differ(fqn, step) else ""

    def may_differ(self, fqn: str, step: int) -> bool:
        """True if what no recorded step until this one has done with a module may be done in others.

        Too few steps in a row were recorded, so that the others may all be of another kind; or it never ran, and
        modules beside it, as in a mixture of experts, ran in some steps alone.
        """
        if self.is_sample(step) and self.in_a_row < LEAST:
            return True
        uncalled = self.uncalled or set()
        places = {owner_of(place) for place in (fqn, *around(fqn))} if fqn in uncalled else set()
        return any(owner_of(other) in places for other in self.idle - uncalled)

    def left_alone(self) -> set[str]:
        """The parameters without a gradient that the program moves, as a target network's, or that no optimizer has.

        Not the latter where an optimizer has parameters that no module has any more: it may have been meant for them.
        """
        by_choice = self.has_optimizers and not self.stale
        unreached = {fqn: course for fqn, course in self.parameters.items() if not course.reached}
        return {fqn for fqn, course in unreached.items() if course.moved or (by_choice and not course.held)}

    @property
    def clears(self) -> bool:
        """True if every gradient had been cleared before each step that an optimizer made."""
        return self.stepped >= LEAST and self.cleared == self.stepped

    @property
    def overflows(self) -> str:
        """The steps that a GradScaler skipped, if it took none in between: "each of the last 12"; "" if too few."""
        if self.skipped < SPAN:
            return ""
        return f"each of the last {self.skipped:,}" if self.has_moved else f"each of the {self.skipped:,}"

    @property
    def has_moved(self) -> bool:
        """True if some parameter has moved."""
        return any(course.moved for course in self.parameters.values())

    def fallen(self) -> dict[str, RateCourse]:
        """The optimizers whose learning rate has fallen to next to nothing and stayed there, not just at the end.

        "" alone if that holds for all together.
        """
        steps = self._row[0] + 1
        since = {name: steps - one.fell_at for name, one in self.rates.items() if one.fallen >= LEAST_RESTING}
        fallen = {name: self.rates[name] for name, n in since.items() if n >= SPAN and n > _END * steps}
        return {"": fallen[""]} if "" in fallen else fallen

    @property
    def clipped(self) -> tuple[float, float] | None:
        """The norms of all gradients as backward left them, and as optimizers got less than a hundredth; else None."""
        taken = math.hypot(*(course.gradient for course in self.parameters.values()))
        return (self.left, taken) if self.left and taken < _CLIPPED * self.left else None

    @property
    def rests(self) -> bool:
        """True if the learning rate was 0 in every step that an optimizer made, and nothing moved by another rate."""
        return self.stepped >= LEAST and self.rates[""].resting == self.stepped and not self.has_moved


def _is_finite(row: Row) -> bool:
    return bool(row.stats and row.stats.finite == row.stats.numel)


def _all_zero(gradients: Mapping[str, Row]) -> bool:
    """True if there are gradients, and every one is zero."""
    return bool(gradients) and all(row["zeros"] == row["numel"] for row in gradients.values())


def _material(grads: Mapping[str, Row]) -> set[str]:
    """The parameters whose gradient is more than rounding, next to the others of their module."""
    sizes = {fqn: row.stats.rms if row.stats else 0.0 for fqn, row in grads.items()}
    largest: dict[str, float] = {}
    for fqn, size in sizes.items():
        owner = owner_of(fqn)
        largest[owner] = max(largest.get(owner, 0.0), size)
    return {fqn for fqn, size in sizes.items() if size > _MATERIAL * largest[owner_of(fqn)]}
