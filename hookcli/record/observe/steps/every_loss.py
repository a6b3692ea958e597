"""The loss of every step, recorded or not."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from torch import Tensor
from torch.optim.optimizer import Optimizer

from hookcli.record.file.record_lines import SKIPPED, UNSEARCHED, NonFinite, StepLosses
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps
from hookcli.record.observe.steps.losses import Held, HeldGradients, looked_at
from hookcli.table.formatting import counted
from hookcli.table.losses import LossCourse
from hookcli.tensors.weak import WeakIds

_AT_ONCE = 100
"""Steps whose losses are read together: reading one on an accelerator makes the program wait for all of its work."""
_RECENT, _ENOUGH = 20, 3  # steps
_Terms = list[Tensor | float] | None  # of one backward pass; None if it begins from no single numbers


@dataclass(slots=True)
class _Pass:
    """One backward pass, or `number` of them that count for the same.

    `reached`: optimizers (ids) that hold the gradients that it left; None if no such were seen.
    """

    terms: _Terms
    reached: set[int] | None = None
    number: int = 1


class _Step(NamedTuple):
    """A step, and the backward passes before it; `whole`: their loss takes the place of what is known of the step.

    `left_out`: what the passes since the step before began from whose gradients no optimizer takes. `backwards`: the
    number of the passes.
    """

    model: str
    number: int
    passes: list[_Terms]
    backwards: int = 0
    left_out: Sequence[Tensor | float] = ()
    whole: bool = False

    @property
    def loss(self) -> float | None:
        """The sum over the passes from numbers, for which an accelerator may have to be waited for."""
        known = [sum(map(float, terms)) for terms in self.passes if terms is not None]
        return sum(known) if known else None


@dataclass(slots=True)
class _Thread:
    """What one thread of the program has done. `running`: its backward passes, of which one may run another."""

    running: list[tuple[_Pass, Held]] = field(default_factory=list)
    passes: list[_Pass] = field(default_factory=list)  # since the last step
    left: Held = field(default_factory=dict)  # by the last pass
    last: list[_Pass] = field(default_factory=list)  # before the last step
    left_out: list[Tensor | float] = field(default_factory=list)  # by the program, since the last step
    following: tuple[str, int] | None = None  # the model of the last step, and the number of the step after it
    had: set[tuple[str, int]] = field(default_factory=set)  # models, and the steps of `last` that have counted for them

    def skipped(self) -> None:
        if self.passes:
            self.last, self.passes = self.passes, []
            self.had.clear()

    def clear(self, optimizers: Set[int]) -> None:
        """The program has cleared the gradients of these optimizers (ids), which no step takes from then on."""
        for one in self.passes if optimizers else ():
            one.reached = one.reached and one.reached - optimizers
        self.leave_out(one for one in self.passes if one.reached == set())
        self.passes = [one for one in self.passes if one.reached != set()]

    def take(self, model: str, optimizer: Optimizer | None) -> list[_Pass]:
        """The passes before the last step that gave the optimizer gradients and do not count for the model yet."""
        reaching = [n for n, one in enumerate(self.last) if one.reached is None or id(optimizer) in one.reached]
        left = [n for n in reaching if (model, n) not in self.had]
        self.had.update((model, n) for n in left)
        return [self.last[n] for n in left]

    def leave_out(self, passes: Iterable[_Pass]) -> None:
        """No step takes these passes: the program has cleared their gradients, or leaves the step out."""
        terms = [*self.left_out, *(term for one in passes for term in one.terms or ())]
        self.left_out = _folded(terms)[-_AT_ONCE:]


class EveryLoss:
    """Takes the loss of each backward pass as it begins, and gives the sum to the next optimizer's step in its thread.

    A pass counts for the optimizers that it gave gradients to, unless the program clears these before the step.
    One that begins from NaN or infinity, and that no step takes, is a skipped loss before the next step; if none comes,
    it is the loss of the step that did not come. `write` receives the losses of consecutive steps and skipped ones,
    `found` the first one that is NaN or infinite, and before it the first that was skipped; `jumped` the first step
    whose loss is far above all before it; `tell_read` the model, number and loss of each step.

    A thread reads the gradients of its own optimizers alone: autograd writes, and PyTorch frees, without Python's lock.
    """

    def __init__(
        self, write: Callable[[StepLosses], None], found: Callable[[NonFinite], None], jumped: Callable[[int], None]
    ) -> None:
        self._write = write
        self._found = found
        self._jumped = jumped
        self.tell_read: Callable[[str, int, float | None], object] = lambda model, number, loss: None
        self.at_once = _AT_ONCE
        self._courses: dict[str, LossCourse] = {}
        self._found_by: set[str] = set()  # causes
        self._threads: dict[int, _Thread] = {}
        self._owners: WeakIds[Optimizer, int] = WeakIds()  # the threads in which optimizers have stepped
        self._owned = 0  # changes
        self._looked_at: dict[int, list[Tensor]] = {}
        self._known: tuple[int, int, int, int] | None = None  # on what that depends
        self._unread: list[_Step] = []
        self._waits = False
        self._read: dict[str, dict[int, float | None]] = {}
        self._backwards: dict[str, dict[int, int]] = {}
        """For each model the number of backward passes of its steps that are read, but not written yet."""
        self._remainders: dict[str, Remainders] = {}
        self._batches: dict[str, Batches] = {}

    def note_batch(self, model: str, number: int, arguments: Iterable[object]) -> None:
        """Note with what a forward with gradients is called in the step of this number."""
        batches = self._batches.get(model) or self._batches.setdefault(model, Batches())
        for x in arguments:
            if type(x) is Tensor and x.dim():
                rows = x.size(0)  # of a nested tensor, too
                if rows > batches.rows.get(number, 0):
                    batches.add(number, rows)
                return

    def begin_pass(self, terms: Iterable[Tensor] | None, optimizers: OptimizerSteps) -> None:
        """A backward pass begins in this thread, from the sum of `terms`."""
        copies: _Terms = None if terms is None else [x.item() if x.is_cpu else x.detach().clone() for x in terms]
        self._waits = self._waits or any(isinstance(copy, Tensor) for copy in copies or ())
        thread = self._threads.setdefault(threading.get_ident(), _Thread())
        gradients = self._gradients(optimizers)
        if not (thread.passes or gradients.several):  # all passes count for the only optimizer
            thread.passes.append(one := _Pass(copies))
            thread.running.append((one, {}))
            return
        if thread.passes:
            thread.clear(gradients.cleared_since(thread.left))
        thread.passes.append(one := _Pass(copies))
        thread.running.append((one, gradients.held))

    def end_pass(self, optimizers: OptimizerSteps) -> bool:
        """The last pass that began in this thread, if any did, is over or has failed. True if it was the outermost."""
        thread = self._threads.get(threading.get_ident())
        if thread is None or not thread.running:
            return False
        one, held = thread.running.pop()
        gradients = self._gradients(optimizers)
        thread.left = gradients.held
        one.reached = (gradients.changed_since(held) if held else {*gradients.held}) or None
        if thread.passes[1:] and thread.passes[-1] is one:
            before = thread.passes[-2]
            terms = _folded([*(before.terms or ()), *(one.terms or ())])
            # A loop may have any number of passes that count for the same: they are one, if their numbers are known.
            if before.reached == one.reached and not any(isinstance(term, Tensor) for term in terms):
                thread.passes[-2:] = [_Pass(terms or None, one.reached, before.number + one.number)]
        return not thread.running

    def _gradients(self, optimizers: OptimizerSteps) -> HeldGradients:
        """The gradients of this thread's optimizers; also of those that have not stepped yet, if no other trains."""
        mine = threading.get_ident()
        known = mine, optimizers.version, self._owned, len(self._threads)
        if known != self._known:
            unknown = mine if len(self._threads) == 1 else None
            self._looked_at = looked_at(o for o in optimizers if (self._owners.get(o) or unknown) == mine)
            self._known = known
        return HeldGradients(self._looked_at)

    def stepped(self, numbers: Mapping[str, int], optimizer: Optimizer | None = None) -> None:
        """An optimizer has made the step of this number, by model. Others that step after it share its passes."""
        thread = self._stepping()
        if optimizer is not None and self._owners.get(optimizer) != (mine := threading.get_ident()):
            self._owners[optimizer] = mine
            self._owned += 1
        thread.skipped()
        for model, number in numbers.items():
            passes = thread.take(model, optimizer)
            backwards = sum(one.number for one in passes)
            self._unread.append(_Step(model, number, [one.terms for one in passes], backwards, thread.left_out))
            thread.following = model, number + 1
        thread.left_out = []
        if not self._waits or len(self._unread) >= self.at_once:
            self._read_all()
        if any(len(losses) > _AT_ONCE for losses in self._read.values()):
            self.flush()

    def passed(self, model: str, numbers: range) -> None:
        """Steps of these numbers were not followed: their losses are not known."""
        self._read.setdefault(model, {}).update(dict.fromkeys(numbers))
        self._stepping().following = model, numbers.stop

    def skipped(self) -> None:
        """An optimizer's step was left out, perhaps not the others' steps: no later step takes these passes."""
        thread = self._stepping()
        thread.leave_out(thread.passes)
        thread.skipped()

    def _stepping(self) -> _Thread:
        """What this thread has done; where it runs no backward, what the only thread that does has done."""
        threads = self._threads
        only = next(iter(threads.values())) if len(threads) == 1 else _Thread()
        return threads.get(threading.get_ident(), only)

    def correct(self, model: str, number: int, loss: float) -> None:
        """A recorded step knows which passes count: the gradients of some are cleared before the optimizer's step."""
        self._unread.append(_Step(model, number, [[loss]], whole=True))

    def end(self, models: Iterable[str]) -> None:
        """Write all losses. Where no optimizer has stepped, one that was not finite is the first of the `models`'."""
        for thread in self._threads.values():
            thread.leave_out(thread.passes)
            following = thread.following or next(((model, 0) for model in models), None)
            if following and _not_finite(thread.left_out) is not None:
                self._unread.append(_Step(*following, [thread.left_out], 1))
        self.flush(all_of_them=True)

    def flush(self, *, all_of_them: bool = False) -> None:
        """Write the losses, but for each model's last step, to which further optimizers may add."""
        self._read_all()
        for model, losses in self._read.items():
            steps = sorted(losses)
            last = [] if all_of_them else steps[-1:]
            self._read[model] = {n: losses[n] for n in last}
            remainders, backwards = self._remainders.setdefault(model, Remainders()), self._backwards.get(model, {})
            for _, consecutive in groupby(enumerate(steps[: len(steps) - len(last)]), lambda item: item[1] - item[0]):
                numbers = [n for _, n in consecutive]
                short = [number for number in numbers if remainders.add(number, backwards.pop(number, 0))]
                self._write(StepLosses(model, numbers[0], [losses[n] for n in numbers], short=short))

    def _read_all(self) -> None:
        unread, self._unread, self._waits = self._unread, [], False
        for step in unread:
            losses, loss = self._read.setdefault(step.model, {}), step.loss
            before = None if step.whole else losses.get(step.number)
            losses[step.number] = before if loss is None else loss + (before or 0.0)
            backwards = self._backwards.setdefault(step.model, {})
            backwards[step.number] = backwards.get(step.number, 0) + step.backwards
            if (skipped := _not_finite(step.left_out)) is not None:
                self._write(StepLosses(step.model, step.number, [skipped], taken=False))
                self._tell(step, skipped, SKIPPED)
            if loss is not None and not math.isfinite(loss):
                self._tell(step, loss, UNSEARCHED)
            course = self._courses.setdefault(step.model, LossCourse())
            if before is None and not step.whole:  # of optimizers that step in turns the first, each time
                self.tell_read(step.model, step.number, loss)
                course.add(step.number, [loss])
                if loss is not None and (batches := self._batches.get(step.model)):
                    batches.losses.append((step.number, loss))
                if course.jumped == step.number:
                    self._jumped(step.number)

    def notes(self) -> Iterator[tuple[str, str]]:
        """Notes on each model that has made steps of fewer backward passes than usual, or a last one of fewer rows."""
        notes = [(model, remainders.note()) for model, remainders in self._remainders.items()]
        notes += [(model, batches.note()) for model, batches in self._batches.items()]
        return filter(itemgetter(1), notes)

    def _tell(self, step: _Step, loss: float, cause: str) -> None:
        if self._found_by.isdisjoint((cause, UNSEARCHED)):
            self._found_by.add(cause)
            nan, inf = int(math.isnan(loss)), int(math.isinf(loss))
            self._found(NonFinite(step.model, "train", step.number, "", "loss", nan, inf, [], cause))


@dataclass(slots=True)
class Remainders:
    """Finds steps that took fewer backward passes than the step before, as at the end of an epoch.

    Their loss, a sum over the passes, is smaller for that reason alone.
    """

    before: int = 0
    last: tuple[int, int, int] | None = None
    """The last such step, its number of passes, and the number of the step before."""
    count: int = 0

    def add(self, step: int, backwards: int) -> bool:
        """Add the next step, which took so many passes (0: unknown). Returns whether it took fewer than usual."""
        usual, self.before = self.before, backwards
        if not 0 < backwards < usual:
            return False
        self.last = step, backwards, usual
        self.count += 1
        return True

    def note(self) -> str:
        """Say which steps they were; "" if there were none."""
        if self.last is None:
            return ""
        step, backwards, usual = self.last
        others = f" and {counted(self.count - 1, 'step')} before it" if self.count > 1 else ""
        took = f"step {step:,}{others} took fewer backward passes ({backwards} instead of {usual})"
        return f"{took}, so the loss is a smaller sum, and is not shown as the last loss"


@dataclass(slots=True)
class Batches:
    """The rows of a model's batches in the last steps, and the losses of these: a batch of fewer rows may have another
    loss, as in contrastive learning, which compares rows.
    """

    rows: dict[int, int] = field(default_factory=dict)
    """By step, the rows of the largest batch."""
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, step: int, rows: int) -> None:
        """A forward of this step is called with so many rows, more than any before."""
        self.rows[step] = rows
        if len(self.rows) > _RECENT:
            del self.rows[next(iter(self.rows))]

    def note(self) -> str:
        """Say that the last loss is of fewer rows than is usual, and unlike those before it; "" if it is not so."""
        *before, (last, loss) = self.losses or [(0, 0.0)]
        usual, often = Counter(self.rows.get(step, 0) for step, _ in before).most_common(1)[0] if before else (0, 0)
        like = [other for step, other in before if self.rows.get(step) == usual]
        rows = self.rows.get(last, 0)
        if often < _ENOUGH or 2 * often < len(before) or not 0 < rows < usual:
            return ""
        if min(like) <= loss <= max(like) or not math.isfinite(loss):  # other lines report that
            return ""
        return f"step {last:,}, whose loss is the last, had a batch of {rows:,} rows instead of {usual:,}"


def _not_finite(terms: Iterable[Tensor | float]) -> float | None:
    return next((term for term in map(float, terms) if not math.isfinite(term)), None)


def _folded(terms: list[Tensor | float]) -> list[Tensor | float]:
    """The sum of the terms, if that waits for no accelerator; else the terms."""
    return terms if not terms or any(isinstance(term, Tensor) for term in terms) else [sum(map(float, terms))]
