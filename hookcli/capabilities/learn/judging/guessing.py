"""The loss that guessing has, and whether a training's is near it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

from hookcli.capabilities.learn.judging.large_inputs import large_inputs
from hookcli.capabilities.learn.lines import Learning
from hookcli.table.formatting import loss as text_of

LOSSES = 50
_PER_CLASS = 300
_NEAR, _NEAR_SHARES = 0.9, 0.98  # of the loss of guessing
NEAR_VARIANCE, SQUARES = 0.95, 100
_NEAR_BINARY, _TARGETS, _RARE = 0.98, 2000, 0.02
_BESIDE = 3  # recorded steps of the later half
_ROUNDED = 1e-4  # of the sum of factors
_WORSE, _FALLEN, _FIRST = 2.0, 0.1, 4  # times the loss of guessing; of the first losses, of which so many count
_FEW, _RISEN = 16, 1.2  # losses before the last recorded step; times these
_UNSURE = 0.2  # of the level, by which it may be off
_WEAK, _LITTLE = 0.99, 0.97  # of the loss of guessing, on the same batches and on others


class Guess(NamedTuple):
    """A mean `loss` near the level of guessing, words on `which` losses it is of, the `level`, and words for it.

    `weak`: the model may have learned what little there may be, as it is a little lower, or as few targets tell.
    """

    loss: float
    which: str
    level: float
    words: str
    weak: bool = False


class Compared(NamedTuple):
    """The mean of some losses, the `level` of guessing, and words on `which` losses these are.

    By `margin` noise may have raised the loss, or lowered the level (two standard errors).
    """

    loss: float
    level: float
    which: str
    margin: float = 0.0

    @property
    def is_lower(self) -> bool:
        """True if the loss is a little lower than the level."""
        return self.loss < _WEAK * self.level

    def is_sure(self, near: float) -> bool:
        """True if the loss is at least `near` times the level, whatever noise has added."""
        return self.loss - self.margin >= near * self.level

    def guess(self, words: str, near: float, *, weak: bool = False) -> Guess | None:
        """The guess in these words, if the loss is at least `near` times the level."""
        near_it = self.loss >= near * self.level
        return Guess(self.loss, self.which, self.level, words, weak) if near_it else None


def has_level(line: Learning) -> bool:
    """True if a recorded step shows what guessing gives: of classes, of squared errors or of binary targets."""
    return bool(line.classes or line.spread or line.ones is not None)


def guess_of(lines: Sequence[Learning], losses: Mapping[int, float]) -> Guess | None:
    """The guess that a training is near; None if it is not, or if that is not known. `losses`: all steps' losses.

    The last quarter of the losses is judged; beside the targets of the batches, the losses of these.
    """
    number, steps = len(losses), sorted(losses)
    last = [losses[step] for step in steps[-(number // 4) :]]
    if number < LOSSES or not lines or not all(map(math.isfinite, last)) or has_risen(losses, since=lines[-1].step):
        return None
    late = {step: losses[step] for step in steps[number // 2 :] if math.isfinite(losses[step])}
    if guess := by_classes(lines, losses, last, late):
        return guess
    first_losses = fmean(losses[step] for step in steps[:_FIRST])
    return by_variance(lines, number, last, late, first_losses) or by_ones(lines, number, last, late)


def has_risen(losses: Mapping[int, float], *, since: int) -> bool:
    """True if the losses have risen since the last recorded step: another one may have been added to them."""
    steps = sorted(losses)
    late = steps[-(len(steps) // 4) :]
    before = [losses[step] for step in steps if step <= since][-_FEW:]
    return bool(before) and since < late[0] and fmean(losses[step] for step in late) > _RISEN * fmean(before)


def by_classes(
    lines: Sequence[Learning], losses: Mapping[int, float], last: Sequence[float], late: Mapping[int, float]
) -> Guess | None:
    """The guess among classes, if the mean of the last losses is near its loss."""
    known = next((line for line in lines if line.classes), None)
    later = [line.scaled for line in lines[len(lines) // 2 :]]
    if (
        known is None
        or (known.scaled is not None and None in later)  # another loss by then
        or not lines[-1].alone
        or not 1 < known.classes < known.items
        or len(losses) * known.items < _PER_CLASS * known.classes
    ):
        return None
    one = math.log(known.classes)
    if guess := by_shares(lines, last, late, one):
        return guess
    compared = beside_sums(lines, late, one) or of_last(last, one * scale_of(lines))
    times = times_text(compared.level / one)
    words = f"guessing among {known.classes:,} classes ({times}ln {known.classes:,} = {text_of(compared.level)})"
    return compared.guess(words, _NEAR, weak=compared.loss < _LITTLE * compared.level)


def by_shares(lines: Sequence[Learning], last: Sequence[float], late: Mapping[int, float], one: float) -> Guess | None:
    """The guess by how often each class is a label, if that is clearly better than the one that all count alike.

    The latter has a mean loss of `one`. It is weak, as every model learns the shares first. Of next to one class alone
    nothing is said: of candidates the first may be it.
    """
    levels = [shared_level(line) for line in lines if line.guessed is not None]
    if len(levels) < max(len(lines), 2) or lines[-1].common_share > 1 - _RARE:
        return None
    if fmean(line.guessed or 0.0 for line in lines) >= _NEAR * one:
        return None
    same = beside(lines, late, shared_level)
    compared = same or of_last(last, fmean(levels), stdev(levels) / math.sqrt(len(levels)))
    share = f"{lines[-1].common_share:.0%} of the labels are class {lines[-1].common}"
    return compared.guess(f"guessing ({text_of(compared.level)}, as {share})", _NEAR_SHARES, weak=True)


def shared_level(line: Learning) -> float:
    """The loss of naming the shares of the classes, in a recorded step."""
    return (line.scaled or 1.0) * (line.guessed or 0.0)


def beside_sums(lines: Sequence[Learning], late: Mapping[int, float], one: float) -> Compared | None:
    """As `beside`, where `one` is the level of a mean, which counts more in some steps than in others; else None."""
    scales = {line.step: line.scaled for line in lines if line.scaled is not None}
    if not scales or math.isclose(min(scales.values()), max(scales.values()), rel_tol=_ROUNDED):
        return None
    return beside([line for line in lines if line.step in scales], late, lambda line: one * scales[line.step])


def times_text(times: float, word: str = "") -> str:
    """A factor, and a word, before what it multiplies; "" for 1."""
    return "" if math.isclose(times, 1, rel_tol=_ROUNDED) else f"{times:.4g} {word}"


def scale_of(lines: Sequence[Learning]) -> float:
    """How often a mean cross-entropy counts in the loss of a step, at most."""
    return max((line.scaled for line in lines if line.scaled is not None), default=1.0)


def times_of(line: Learning) -> float:
    """How often the mean of squared errors, or of binary cross-entropies, counts in the loss of a step."""
    return 1.0 if line.times is None else line.times


def level_of(line: Learning, middle: float | None = None) -> float:
    """The loss of always returning one number, in a recorded step: `middle`, where the targets' mean is known."""
    away = 0.0 if line.absolute or middle is None or line.center is None else line.center - middle
    error = (line.spread or 0.0) + away**2
    return times_of(line) * (math.sqrt(error) if line.rooted else error)


def by_variance(
    lines: Sequence[Learning], number: int, last: Sequence[float], late: Mapping[int, float], first_losses: float
) -> Guess | None:
    """The guess that is always one number, if the mean error is near its loss.

    Squared errors are least for the mean of the targets, and are their variance then; absolute ones for their median.
    """
    spreads = [line.spread for line in lines if line.spread]
    if number < SQUARES or not spreads or len(spreads) < len(lines):
        return None
    middle = middle_of(lines)
    same = beside(lines, late, lambda line: level_of(line, middle)) if middle is not None else None
    levels = [level_of(line) for line in lines]
    compared = same or of_last(last, median(levels))
    has_fallen = fmean(last) < _FALLEN * first_losses  # rows may repeat one another
    if has_fallen and is_on_its_way(compared, lines):
        return None
    weak = tells_little(compared, levels) or (has_fallen and middle is None)
    if same is not None:
        weak = same.is_lower or not same.is_sure(NEAR_VARIANCE)
    return compared.guess(f"always returning {best_number(lines, compared.level)}", NEAR_VARIANCE, weak=weak)


def tells_little(compared: Compared, levels: Sequence[float]) -> bool:
    """True if a loss is a little lower than the median of these levels, or if that may be far off.

    Few targets a step make each of them so.
    """
    is_lower = compared.loss < _LITTLE * compared.level
    return is_lower or len(levels) < 2 or 2 * stdev(levels) > _UNSURE * median(levels) * math.sqrt(len(levels))


def middle_of(lines: Sequence[Learning]) -> float | None:
    """The mean of all targets, if each row has one."""
    centers = [line.center for line in lines if line.center is not None]
    return fmean(centers) if len(centers) == len(lines) else None


def is_on_its_way(compared: Compared, lines: Sequence[Learning]) -> bool:
    """True if a loss, which has fallen far, may be above the level as rows are something else: an image's channels."""
    return compared.loss > _WORSE * compared.level and not large_inputs(lines)


def best_number(lines: Sequence[Learning], level: float) -> str:
    """Words on the number whose mean error is the least, which is the level of guessing."""
    if lines[-1].absolute:
        return f"the median of the targets ({text_of(level)})"
    times = times_text(fmean(map(times_of, lines)), "times ")
    spread = "standard deviation" if lines[-1].rooted else "variance"
    return f"the mean of the targets ({times}their {spread} is {text_of(level)})"


def by_ones(lines: Sequence[Learning], number: int, last: Sequence[float], late: Mapping[int, float]) -> Guess | None:
    """The guess by the share of ones among the targets, if the mean loss is near its loss.

    Two models that work against each other stay there when all is well.
    """
    ones = [line.ones for line in lines if line.ones is not None]
    targets = lines[0].targets
    if number < SQUARES or not ones or len(ones) < len(lines) or not lines[-1].alone or number * targets < _TARGETS:
        return None
    share = fmean(ones)
    if not _RARE <= share <= 1 - _RARE:
        return None
    of_one, of_zero = -math.log(share), -math.log(1 - share)
    same = beside(lines, late, lambda line: times_of(line) * ((line.ones or 0.0) * (of_one - of_zero) + of_zero))
    times = fmean(map(times_of, lines))
    unsure = times * abs(of_one - of_zero) * math.sqrt(share * (1 - share) / (targets * len(ones)))
    others = of_last(last, times * (share * of_one + (1 - share) * of_zero), unsure)
    compared = same or others
    sure = compared.is_sure(_NEAR_BINARY) or others.is_sure(_NEAR_BINARY)
    words = f"guessing ({text_of(compared.level)}, as {share:.0%} of the targets are 1)"
    return compared.guess(words, _NEAR_BINARY, weak=compared.is_lower or not sure) if same or sure else None


def beside(
    lines: Sequence[Learning], late: Mapping[int, float], level_of: Callable[[Learning], float]
) -> Compared | None:
    """The losses of the recorded steps in the later half beside guessing's on the same batches; None for few."""
    pairs = [(late[line.step], level_of(line)) for line in lines if line.step in late]
    if len(pairs) < _BESIDE:
        return None
    loss, level = (fmean(figures) for figures in zip(*pairs, strict=True))
    margin = margin_of([one - guessed for one, guessed in pairs], level)
    return Compared(loss, level, f"the last {len(pairs):,} recorded losses", margin)


def of_last(last: Sequence[float], level: float, unsure: float = 0.0) -> Compared:
    """The last losses beside a level that is not of their own batches, with its standard error."""
    margin = math.hypot(margin_of([loss - level for loss in last], level), 2 * unsure)
    return Compared(fmean(last), level, f"the last {len(last):,} losses", margin)


def margin_of(differences: Sequence[float], level: float) -> float:
    """Student's 97.5 % bound, within 2 %, of the mean of differences from the level; of three or more.

    What is above twice the level counts as twice, so that a few high losses do not hide that none is low.
    """
    number, capped = len(differences), [min(one, level) for one in differences]
    return (1.96 + 2.4 / (number - 2)) * stdev(capped) / math.sqrt(number)


def as_guessed(guess: Guess) -> str:
    """Words on losses that are near the level of guessing."""
    better = "hardly better" if guess.loss < guess.level else "no better"
    better = "far worse" if guess.loss > _WORSE * guess.level else better
    return f"{guess.which} have a mean of {text_of(guess.loss)}, {better} than {guess.words}"
