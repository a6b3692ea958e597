"""HK009: gradients that are zero everywhere, and the factor that makes them so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Protocol

from hookcli.checks.base import ERROR, FEW, Check, listed_within, names_within, of_kind
from hookcli.checks.measurements import ReadsValues
from hookcli.checks.search import find_where
from hookcli.checks.training import CLEAR_LATER
from hookcli.table import INFO, Finding, Report, Row
from hookcli.table.formatting import number
from hookcli.table.names import around, is_within, is_within_any, owner_of
from hookcli.table.training import TrainingCourse

_RANDOM = ("Drop", "Stochastic")
_AROUND = 3  # modules, from the inside, among which two factors of one product lie
_WITH_BIAS = ("Linear", "Conv")
_RUN = 2  # recorded steps from which on zeros say something on the run


class _ReadsZeros(ReadsValues, Protocol):
    inventory: Report | None
    output_grads: Report | None
    loss: float | None


class ZeroGradient(Check):
    """The gradient of a parameter is exactly zero everywhere: it arrived, but carries no information.

    A gradient that is zero by chance would be nonzero in some element. A whole tensor of zeros means that some factor
    is zero: a dead ReLU, a mask, a later layer with zero weights, or a loss that does not depend on this batch (heads
    of detectors, if no object is near). Such a factor zeroes the gradients of everything before it, so only the module
    nearest to the loss, whose gradient arrived first, is reported, with a count of the others. Only a warning, since
    some models initialise a last layer to zero on purpose (Goyal et al. 2017, section 5.1). Not reported are a branch
    that stochastic depth or dropout skipped entirely in this run, which is common with a batch of two, and a bias whose
    gradients cancel, as in the difference of two outputs that trains a critic.

    `hookcli run --check` reports an error if every gradient was zero in each of two or more recorded steps: nothing is
    learned; not if nothing but zeros came back to this model while another one learns, as to a discriminator whose loss
    has no weight yet. It is a note if the loss of the step is 0, as a margin loss is once all is learned. The command
    also sees the gradients that backward left, and so whether the program cleared them before the optimizer's step.
    """

    id = "HK009"
    name = "zero-gradient"
    means = "dead units, a mask, or zero weights after this module (or, if the message says so, before it)"
    advice = "`hookcli activations MODEL --sort -zeros` shows where the zeros begin"
    follows = ("HK010", "HK011", "HK012", "HK014", "HK066")
    of_forward = "(the layer's input is zero)"
    look = "grads --of outputs"
    needs = ("grads", "activations")
    takes = ("inventory", "output_grads")

    def judge(self, measured: _ReadsZeros) -> Iterator[Finding]:
        left_out, course = _left_out(measured.activations.rows), measured.training
        cancelled = _cancelled(measured)
        zero = [row.fqn for row in measured.grads.rows if is_zero(row) and not is_within_any(row.fqn, left_out)]
        zero = [name for name in zero if name not in cancelled]
        if zero:
            owner = owner_of(zero[0])
            names = [name for name in zero if owner_of(name) == owner]
            rest = len(zero) - len(names)
            more = f", and of {rest} other parameter{'s' * (rest > 1)}" if rest else ""
            why, remedy = _why(measured, zero, names)
            reasons = f"{why}{more}" if why.startswith(" (") else f"{more}{why}"
            finding = self.finding(
                owner, f"the gradient of {listed_within(owner, names)} is all zero{reasons}", len(zero)
            )
            finding = replace(finding, hint=remedy, remedy=remedy) if remedy else finding
            finding = replace(finding, severity=INFO) if remedy == _AT_ZERO else finding
            if course and course.zero == course.steps >= _RUN:
                message = f"every gradient was zero in all {course.steps:,} recorded steps{why}"
                finding = replace(finding, severity=ERROR, message=message)
            yield finding


def _why(measured: _ReadsZeros, zero: Sequence[str], names: Sequence[str]) -> tuple[str, str]:
    """Where the zero factor is, as far as is known, and what to try if not the usual; `names` are the parameters of one
    module among all `zero` ones.

    The gradient of a bias is the gradient that flows back; a weight's is its product with the layer's input. Two
    factors that are zero both, as of an adapter, each make the other's gradient zero; one alone gets a gradient itself.
    """
    if any(why_of_loss := of_loss(measured)):
        return why_of_loss
    owner = owner_of(names[0])
    reached = [row.fqn for row in measured.grads.rows if owner_of(row.fqn) == owner if row.fqn not in zero]
    if f"{owner}.bias".lstrip(".") in reached:
        return why_of_weight(measured, owner)
    arrived = _arrived(measured.output_grads, owner)
    factors = _zero_factors(measured, zero, owner) if arrived != 0 else []
    outside, why, remedy = "", "", ""
    if arrived:
        outside, why = f"; the gradient of its output is {number(arrived)}", "a factor inside it is zero"
    if factors:
        both = "both" if len(factors) == 2 else "all"
        return f": {' and '.join(factors)} are {both} zero, so each gets a zero gradient{outside}", _FACTORS
    if factor := _factor_after(measured, zero[0]):
        return f": {factor} is zero, so that zero flows back{outside}", _ZERO_FACTOR
    if len(zero) == len(measured.grads.rows):
        why, remedy = _zeroed(measured.training, arrived)
    if why:
        return f"{outside}: {why}", remedy
    return ("" if reached else " (zero flows back to it)"), ""


def of_loss(measured: _ReadsZeros) -> tuple[str, str]:
    """Why the loss gives no gradient, and what to try; "", "" if it does, as far as is known."""
    if measured.loss == 0 and all(map(is_zero, measured.grads.rows)):
        return ": the loss is 0", _AT_ZERO
    if _arrived(measured.output_grads, "") == 0:
        return ": the loss is flat here, as the gradient of the model's output is zero as well", _FLAT
    return "", ""


def why_of_weight(measured: _ReadsZeros, owner: str) -> tuple[str, str]:
    """Why the gradient of a module's weight is zero and its bias's is not, and what to try if not the usual.

    What the module received is known if the module that ran last before it, or the model's input, gave zeros alone.
    """
    before = takewhile(lambda row: row.fqn != owner, measured.activations.rows)
    outputs = [row for row in before if row.fqn not in around(owner)]
    inputs = of_kind(measured.inventory, "input") if measured.inventory else []
    ended = [row for row in outputs if is_within(f"{outputs[-1].fqn}.", row.fqn)]  # with the modules around the last
    if any(map(is_zero, ended or inputs)):
        return f" {ZeroGradient.of_forward}", ""
    return _WEIGHT_ALONE, _CHANGED


def _zeroed(course: TrainingCourse | None, arrived: float | None) -> tuple[str, str]:
    """Why all gradients are zero, though outputs have some (the largest is `arrived`), and what to try."""
    left = course.left if course else None
    if left is not None and math.isnan(left):
        return "backward left NaN or infinities, and the program set all gradients to zero", find_where("they begin")
    if not arrived:
        return "", ""
    if left is None:
        return "zeroed after backward, as clipping by an infinite norm does, or zero_grad()", _CLIPPING
    if left == 0:
        return "a factor inside it is zero", ""
    if left > _LARGE:
        return f"backward left {number(left)}, zeroed since then, as clipping by an infinite norm does", _CLIPPING
    return "every gradient was set to 0 before the optimizer's step, as by zero_grad() or a clip to 0", _SET_TO_ZERO


_SET_TO_ZERO = f"{CLEAR_LATER}; look at the norm that gradients are clipped to"
_LARGE = 1e4  # a norm; from 65,504 on it is infinite in float16
_WEIGHT_ALONE = " (the bias's is not: the layer's input is zero, or a mask or hook makes it so)"
_AT_ZERO = "see whether a loss of 0 is meant, as of a margin that is reached, or of CTCLoss with zero_infinity=True"
_FLAT = "look at the loss: at clamps, comparisons and masks, and at the ranges of outputs and targets"
_CHANGED = "look for a hook on the weight, a mask, or zeros in the input"
_FACTORS = "initialise one of them with other values than zero (in LoRA, A at random and B with zero)"
_ZERO_FACTOR = (
    "nothing to do if it begins at zero on purpose, as in LoRA or at a residual block's end: it has a gradient, so "
    "training ends this; else initialise it with other values"
)
_CLIPPING = "look at the norm that clip_grad_norm_ returns, and at the gradients before it; error_if_nonfinite=True"


def _zero_factors(measured: _ReadsZeros, zero: Sequence[str], owner: str) -> list[str]:
    """Parameters that are zero as their gradients are, in the module or in one just around it; none of one alone."""
    rows = measured.inventory.rows if measured.inventory else ()
    empty = [row.fqn for row in rows if row["kind"] == "parameter" and row.fqn in zero and is_zero(row)]
    if any(owner_of(name) == owner for name in empty):
        for place in (owner, *around(owner))[:_AROUND]:
            factors = [name for name in empty if is_within(name, place)]
            if len(factors) > 1:
                return names_within(place, factors) if len(factors) <= FEW else []
    return []


def _factor_after(measured: _ReadsZeros, name: str) -> str:
    """The parameter that is zero, in the module whose gradients arrived just before; "" if none is.

    Biases, which often begin at zero, are not factors.
    """
    arrived = [row.fqn for row in measured.grads.rows]
    before = arrived[: arrived.index(name)]
    rows = measured.inventory.rows if measured.inventory else ()
    empty = {row.fqn for row in rows if row["kind"] == "parameter" and is_zero(row)}
    last = [one for one in before if owner_of(one) == owner_of(before[-1])]
    return next((one for one in last if one in empty and not one.endswith(_SHIFTS)), "")


_SHIFTS = ("bias", "beta", "shift")


def _cancelled(measured: _ReadsZeros) -> set[str]:
    """The biases of layers whose output and weight have gradients: the sum over the batch is zero, and no factor."""
    zeros = {row.fqn: is_zero(row) for row in measured.grads.rows}
    layers = {row.fqn for row in measured.activations.rows if row["type"].startswith(_WITH_BIAS)}
    biases = [name for name in zeros if name.rpartition(".")[2] == "bias" and owner_of(name) in layers]
    trained = [name for name in biases if not zeros.get(f"{owner_of(name)}.weight".lstrip("."), True)]
    return {name for name in trained if _arrived(measured.output_grads, owner_of(name))}


def _arrived(output_grads: Report | None, fqn: str) -> float | None:
    """The largest value in the gradients of a module's outputs; None if none is known."""
    rows = output_grads.rows if output_grads else ()
    stats = [row.stats for row in rows if row.fqn == fqn and row["kind"] == "output" and row.stats]
    return max((max(abs(one.min), abs(one.max)) for one in stats if one.finite), default=None)


def is_zero(row: Row) -> bool:
    """True if all elements of a row's tensor are zero."""
    return bool(row.stats and row.stats.numel and row.stats.zeros == row.stats.numel)


def _left_out(rows: Iterable[Row]) -> set[str]:
    """The modules that zeroed a whole output by chance, without those that received zeros from what ran before."""
    places: set[str] = set()
    by_chance = was_zero = False
    for row in rows:
        zero = is_zero(row)
        by_chance = zero and (by_chance if was_zero else _is_random(row))
        was_zero = zero
        if by_chance and _is_random(row):
            places.add(owner_of(row.fqn))
    return places - {""}


def _is_random(row: Row) -> bool:
    return any(word in row["type"] for word in _RANDOM)
