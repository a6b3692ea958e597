"""HK053 to HK055: parameters that no optimizer has, weights that never move, and an update that ruined the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import ClassVar

from hookcli.checks.base import ERROR, WARNING, Check
from hookcli.checks.measurements import ReadsLosses, ReadsTraining
from hookcli.table import Finding
from hookcli.table.formatting import counted, number, setting
from hookcli.table.names import owner_of
from hookcli.table.training import LEAST, LEAST_UNHELD, SPAN, ParameterCourse, TrainingCourse

_NAMED = 3  # parameters
CLEAR_LATER = "call zero_grad() before backward(), or after the optimizer's step"
_SCALE = "look at the gradients without the GradScaler: if they are finite, give it a smaller init_scale"
_RATE = "look at the scheduler, and at the learning rate that the optimizer was given, or loaded"
_FAINT, _VANISHES = 1e-6, "look in which layer the gradient vanishes (HK012)"
_UNDO = "look for what writes to them after the optimizer's step: a clamp, a copy, or load_state_dict"
_IN_PLACE = "look at the optimizer's step(): it must change parameters in place"
_HELD = "give the optimizer parameters of the model that runs, with gradients"
_CLIP = "clip gradients to a larger norm"
_RAISE = "raise the learning rate"
_STEP = "call the optimizer's step() after backward()"


def _place(names: Sequence[str]) -> tuple[str, str]:
    """The module that has all of these parameters, "" for the model, and their names within it."""
    owners = {owner_of(name) for name in names}
    owner = owners.pop() if len(owners) == 1 else ""
    short = [name.removeprefix(f"{owner}.") for name in names]
    more = f" and {counted(len(short) - _NAMED, 'more parameter')}" if short[_NAMED:] else ""
    return owner, ", ".join(short[:_NAMED]) + more


class NotInOptimizer(Check):
    """A parameter gets gradients, and no optimizer has it: it keeps its value for the whole run.

    `hookcli run --check` says so after three recorded steps, if nothing else has moved such a parameter either: the
    program itself may update them by hand, or from copies in more bits. It is a warning, since an optimizer is often
    given a part of a model on purpose; to freeze the rest (`requires_grad_(False)`) then saves its gradients. It is an
    error if an optimizer has parameters without gradients that no module has, since a layer was replaced, or
    the model copied, after the optimizer was made. It is also an error if no gradient reaches any parameter of the
    model or of any optimizer: for example, when adapters were created but never put into the model.
    """

    id = "HK053"
    name = "not-in-optimizer"
    means = "a layer that was replaced or added, or a model that was copied, after the optimizer was made"
    advice = "make the optimizer after the model, or freeze them"
    needs = ("training", "grads")
    asked_by = "hookcli run --check"

    def too_little(self, measured: ReadsTraining) -> str:
        steps = measured.training.steps
        return "" if steps >= LEAST_UNHELD else f"it needs {LEAST_UNHELD} recorded steps; {steps} were recorded"

    def judge(self, measured: ReadsTraining) -> Iterator[Finding]:
        course = measured.training
        if names := course.unheld():
            owner, listed = _place(names)
            stale = f"; {course.stale}" if course.stale else ""
            message = f"no optimizer has {listed}: gradients arrive, but nothing updates the values{stale}"
            finding = self.finding(owner, message, len(names))
            yield replace(finding, severity=ERROR) if stale else finding
        elif course.idle_optimizer and not course.reached and not any(x.moved for x in course.parameters.values()):
            message = f"no gradient reached anything that an optimizer has: {course.idle_optimizer}"
            yield replace(self.finding("", message), severity=ERROR, remedy=_HELD, hint=_HELD)


class StillWeights(Check):
    """A parameter did not change at all in any recorded step, though an optimizer was to move it.

    In bfloat16 and float16 an update below half of the distance to the next number is lost: near 1, bfloat16 numbers
    are 0.0078 apart. `hookcli run --check` judges a parameter after five recorded steps of its optimizer or more, over
    nine steps or more. Its gradient must be more than rounding, and the learning rate at least half of its highest.

    Not judged are parameters during a warm-up, and those of which the optimizer keeps a copy in more bits. A learning
    rate of 0 for some parameters of an optimizer is taken for a way to freeze them.

    Also errors:
    - The learning rate was 0 in all of these steps.
    - The program cleared the gradients, in all of these steps, between backward and the optimizer's step.
    - An optimizer has made no step when the program ends, after five backward passes or more. It is a warning if
      another optimizer steps: this one may be meant to begin later.
    - A GradScaler has skipped each of nine recorded steps or more. It is a warning if the model was trained before.

    Warnings:
    - The learning rate of one optimizer, or of all, fell to 0, or below a ten-thousandth of its highest. It stayed
      there for nine steps or more, and for more than a tenth of all, and nothing moved.
    - A parameter did not move, whose gradient is less than a millionth of the largest of another one: it has vanished.
    - An optimizer moved a parameter of more than one number in each of these steps, and the next recorded step began
      with the value from before: the program undid the update.
    """

    id = "HK054"
    name = "still-weights"
    severity: ClassVar[str] = ERROR
    means = "updates that are lost as the weights are rounded, or a learning rate that is 0 or far too small"
    advice = "keep weights in float32 (autocast), or raise the learning rate"
    needs = ("training", "output_grads")
    asked_by = "hookcli run --check"

    def too_little(self, measured: ReadsTraining) -> str:
        course = measured.training
        if course.unused or course.overflows or (course.stepped >= LEAST and course.span >= SPAN):
            return ""
        recorded = f"{course.stepped} within {course.span} were recorded" if course.stepped else "it made none"
        return f"it needs {LEAST} recorded steps of an optimizer within {SPAN} or more; {recorded}"

    def judge(self, measured: ReadsTraining) -> Iterator[Finding]:
        course = measured.training
        steps = f"in each of the {course.stepped:,} recorded steps"
        of_all: Sequence[tuple[object, str, str, bool]] = (
            (course.unused, course.unused, _STEP, course.has_optimizers),
            (course.overflows, f"the GradScaler skipped {course.overflows} recorded steps", _SCALE, course.has_moved),
            (course.rests, f"the learning rate was 0 {steps}", _RATE, False),
            (course.clears, f"every gradient was cleared before the optimizer's step, {steps}", CLEAR_LATER, False),
        )
        for _, message, remedy, trained in filter(itemgetter(0), of_all):
            finding = self.finding("", message if trained else f"{message}: nothing was trained")
            yield replace(finding, severity=WARNING if trained else ERROR, remedy=remedy, hint=remedy)
        for optimizer, one in course.fallen().items():
            owner, listed = _place(one.names) if optimizer else ("", "")
            of, its = (f" of {optimizer}, which has {listed},", " of its") if optimizer else ("", "")
            nothing = f"the last {one.fallen:,}{its} recorded steps trained nothing"
            message = f"the learning rate{of} is {setting(one.rate)} since step {one.fell_at:,}: {nothing}"
            yield self._warned(owner, message, one.fallen, _RATE)
        for optimizer, names in course.waiting().items():
            owner, listed = _place(names)
            steps = f"in any of the {course.stepped:,} recorded steps that another optimizer made"
            message = f"{optimizer}, which has {listed}, made no step {steps}"
            yield self._warned(owner, message, len(names), _STEP)
        if undone := course.undone():
            owner, listed = _place([*undone])
            steps = f"after each of {min(len(one.undone) for one in undone.values()):,} recorded steps"
            message = f"the optimizer moved {listed}, and {steps} the values were what they had been before"
            yield self._warned(owner, message, len(undone), _UNDO)
        yield from self.unmoved(course)

    def unmoved(self, course: TrainingCourse) -> Iterator[Finding]:
        """The findings on parameters that no optimizer has moved, by their dtypes."""
        clipped = course.clipped
        by = f", clipped from a norm of {number(clipped[0])} to {number(clipped[1])}" if clipped else ""
        still = course.still()
        largest = max((one.gradient for one in course.parameters.values()), default=0.0)
        for dtype in dict.fromkeys(one.dtype for one in still.values()):
            names = [fqn for fqn, one in still.items() if one.dtype == dtype]
            owner, listed = _place(names)
            first = still[names[0]]
            steps = f"in any of {len(first.pushed):,} recorded steps, with a gradient of {number(first.gradient)}{by}"
            faint = first.gradient < _FAINT * largest
            why, remedy = (f": the largest is {number(largest)}", _VANISHES) if faint else _why(first)
            remedy = _CLIP if clipped and first.rounds_away else remedy
            finding = self.finding(owner, f"{listed} did not move {steps}{why}", len(names))
            finding = replace(finding, severity=WARNING) if faint else finding
            yield replace(finding, remedy=remedy, hint=remedy) if remedy else finding

    def _warned(self, place: str, message: str, value: int, remedy: str) -> Finding:
        return replace(self.finding(place, message, value), severity=WARNING, remedy=remedy, hint=remedy)


def _why(course: ParameterCourse) -> tuple[str, str]:
    """Why a parameter does not move, the numbers around its values or what its optimizer does, and what to try.

    That is "" where the check's advice is right.
    """
    rate = f"(learning rate {setting(course.pushed[-1][1])})"
    if not course.rounds_away:
        return f": its optimizer leaves it as it is {rate}", _IN_PLACE
    near = f"{course.dtype} numbers near {number(course.rms)} are {number(course.spacing)} apart"
    remedy = "" if course.dtype in ("bfloat16", "float16") else _RAISE
    return f": {near}, and an update of less than half of that is lost {rate}", remedy


class UpdateTooLarge(Check):
    """After an update larger than the weights themselves, the loss was more than ten times as high as before.

    A healthy update is a thousandth of the weights. `hookcli run --check` looks at the first 64 losses, and at recorded
    steps whose update was at least as large as all weights of a parameter group together; the figure is how many times
    as large. It is an error if the loss did not come back to where it was, else a warning.
    """

    id = "HK055"
    name = "update-too-large"
    means = "a learning rate that is too high"
    advice = "use a lower learning rate, warm it up, or clip gradients"
    follows = ("HK066",)
    needs = ("losses",)
    asked_by = "hookcli run --check"

    def judge(self, measured: ReadsLosses) -> Iterator[Finding]:
        course = measured.losses
        if blown := course.blow_up():
            finding = self.finding("", f"the loss {course.jumps()}", blown.update.ratio)
            recovered = course.last is not None and course.last <= blown.before
            yield finding if recovered else replace(finding, severity=ERROR)
