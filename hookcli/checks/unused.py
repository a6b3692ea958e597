"""HK006 to HK009: modules that forward never calls, and parameters that backward never reaches."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from hookcli.checks.base import ERROR, WARNING, Check, of_kind
from hookcli.checks.measurements import ReadsInventory, ReadsValues, ReadsWeightsAndGrads
from hookcli.checks.search import find_where
from hookcli.checks.training import CLEAR_LATER
from hookcli.table import Finding, Report, Row
from hookcli.table.formatting import number
from hookcli.table.names import around, is_within, is_within_any, owner_of
from hookcli.table.training import TrainingCourse

# Layers of torch.nn without parameters that have an effect: if one is never called, the call was forgotten.
_LAYERS = ("Dropout", "ReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "ELU", "Softmax", "Pool", "Hardswish", "Mish")
_RANDOM = ("Drop", "Stochastic")
_AROUND = 3  # modules, from the inside, among which two factors of one product lie
_FEW = 3  # names that a message has room for
_WITH_BIAS = ("Linear", "Conv")
_RUN = 2  # recorded steps from which on zeros say something on the run


class _ReadsCalls(ReadsInventory, Protocol):
    called_in_eval: Collection[str] | None
    called_by_chance: Collection[str]


class _ReadsCallsAndGrads(_ReadsCalls, ReadsWeightsAndGrads, Protocol): ...


class NeverRan(Check):
    """A module with trainable parameters was never called, and its parameters got no gradient either.

    One that is called in eval mode, but not in training, is reported, too: it is used as it was initialised.

    A module whose weights are used without calling it (`nn.MultiheadAttention` does so with its `out_proj`) is not
    reported, because its parameters get a gradient. Of nested modules only the outermost is reported. Some models have
    parts for another mode, such as heads for inference: ignore the check for such a model. Nor is a module that chance
    left out of this run, as LayerDrop does, and further forwards call.
    """

    id = "HK006"
    name = "never-called"
    means = "a layer that forward does not use, or a branch that this input does not take"
    advice = "call it, remove it, or use an input that reaches it"
    follows = ("HK048",)
    needs = ("inventory", "grads")
    takes = ("called_in_eval", "called_by_chance")
    whole = True
    values = False

    def judge(self, measured: _ReadsCallsAndGrads) -> Iterator[Finding]:
        reached = _reached(measured)
        uncalled = [row for row in _uncalled(measured) if row["trainable"]]
        used = {row.fqn for row in uncalled if any(is_within(name, row.fqn) for name in reached)}
        names = {row.fqn for row in uncalled} - used
        for row in uncalled:
            if row.fqn in names and not is_within_any(row.fqn, names):
                what = f"{row['type']} with {row['params']:,} parameters"
                if row.fqn in (measured.called_in_eval or ()):
                    finding = self.finding(
                        row.fqn, f"{what} is called in eval mode only: it is never trained", row["params"]
                    )
                    yield replace(finding, hint=_IN_EVAL_ONLY, remedy=_IN_EVAL_ONLY)
                else:
                    yield self.finding(row.fqn, f"{what} {_was_not_called(measured)}", row["params"])


_IN_EVAL_ONLY = "also call it in training mode, or freeze it"


class NotCalled(Check):
    """A layer of torch.nn without parameters (an activation, a dropout, a pooling) was never called.

    Nothing fails if `self.dropout` is created in __init__ and forgotten in `forward`. Layers of one type and name, as
    in repeated blocks, are one finding. Layers inside a module that was never called are covered by HK006. A dropout is
    not reported if the code around it does its work without calling it: code that reads its `p`, or passes a
    `dropout_p` to F.scaled_dot_product_attention and calls the dropout only in another branch. Nor is a layer that is
    called in eval mode, such as the softmax of a model that is trained on logits.
    """

    id = "HK007"
    name = "layer-never-called"
    means = "a layer created in __init__ and forgotten in forward"
    advice = "call it, or remove it"
    needs = ("inventory",)
    takes = ("called_in_eval", "called_by_chance")
    whole = True
    values = False

    def judge(self, measured: _ReadsCalls) -> Iterator[Finding]:
        in_eval = measured.called_in_eval or ()
        uncalled = {row.fqn: row for row in _uncalled(measured) if row.fqn not in in_eval}
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in reversed(uncalled.values()):
            has_effect = row["builtin"] and not row["params"] and any(word in row["type"] for word in _LAYERS)
            if has_effect and not row.get("used") and not is_within_any(row.fqn, uncalled.keys()):
                groups.setdefault((row["type"], row.fqn.rpartition(".")[2]), []).append(row)
        for *others, first in groups.values():
            more = f", nor were {len(others)} others of that name" if others else ""
            yield self.finding(first.fqn, f"{first['type']} {_was_not_called(measured)}{more}", 1 + len(others))


class _ReadsReach(_ReadsCallsAndGrads, Protocol):
    used_by_loss: Mapping[str, str] | None


class NoGradient(Check):
    """A parameter that requires a gradient got none, as in DistributedDataParallel's unused-parameter error.

    DDP waits for the gradient of every such parameter, and raises "Expected to have finished reduction in the prior
    iteration" unless it is given `find_unused_parameters=True`. Without DDP the parameter silently keeps its initial
    value. Frozen parameters (requires_grad=False) are not reported. A module without a gradient in any of its
    parameters is one finding. `hookcli run --check` looks at all recorded steps: a gradient in one of them is enough,
    also where no optimizer took it (HK053). It does not report parameters that no optimizer has: the program trains
    others, such as a new head on a body that runs without gradients. Only a warning if other steps may differ: fewer
    than five steps in a row were recorded, or the module never ran and modules beside it did not run in each step, as
    in a mixture of experts.

    `hookcli check` follows such parameters to the loss, past any detach; where their values leave PyTorch, as by item()
    or numpy(), it changes them to see whether the loss changes. `run --check` follows them in the next recorded step,
    but not in compiled code, nor past numbers. Only a warning if the module ran and the loss is not computed from the
    parameter, as of a mask token or a head for another task, which can't get a gradient in this one, or if that is
    unknown in a running program. If the loss is computed from it, something on the way cuts the gradient off.
    """

    id = "HK008"
    name = "no-gradient"
    severity = ERROR
    means = "the loss does not depend on it: an unused layer, or a detach(), .data or no_grad() on the way"
    advice = "use it, freeze it, or look for a detach between it and the loss"
    follows = ("HK006",)
    needs = ("inventory", "grads")
    takes = ("used_by_loss", "called_by_chance")
    whole = True
    values = False

    def judge(self, measured: _ReadsReach) -> Iterator[Finding]:
        for (owner, cause), names in _by_place_and_cause(measured).items():
            course, step = measured.training, measured.step
            steps = course.in_recorded_steps(owner, step) if course and step is not None else ""
            finding = self.finding(owner, f"no gradient reached {_listed(owner, names)}{steps}{cause}", len(names))
            if cause in _REMEDIES:
                finding = replace(finding, hint=_REMEDIES[cause], remedy=_REMEDIES[cause])
            yield replace(finding, severity=WARNING) if steps or cause in (_UNUSED, _UNKNOWN) else finding


_UNUSED = ": the loss does not use it"
_UNKNOWN = ": unused by the loss, or cut off from it"
_CHECKPOINT = ": it ran in a reentrant checkpoint whose inputs need no gradient"
_NO_GRAD = ": it ran with gradients off"
_NUMBERS = ": the loss is computed from it by way of Python or NumPy numbers, which carry no gradient"
_REMEDIES = {
    _UNUSED: "freeze it if it is for another task; DDP needs find_unused_parameters=True",
    _CHECKPOINT: "call checkpoint(..., use_reentrant=False)",
    _NUMBERS: "keep tensors between it and the loss: no item(), tolist() or numpy()",
    _NO_GRAD: "look for torch.no_grad() or inference_mode() around its call, or freeze it",
}


def _lost(measured: _ReadsReach) -> list[str]:
    """The parameters without a gradient; in a running program in no recorded step, and not left alone on purpose."""
    excused = _reached(measured)
    if measured.training:
        excused = excused | measured.training.left_alone()
    lost = without_gradient(measured.inventory.rows, measured.grads.rows)
    return [name for name in lost if name not in excused and not is_within_any(name, measured.called_by_chance)]


def _by_place_and_cause(measured: _ReadsReach) -> dict[tuple[str, str], list[str]]:
    """The parameters without a gradient, by the outermost module in which none has one, and by the cause."""
    inventory, lost = measured.inventory.rows, _lost(measured)
    calls = [row for row in inventory if row["kind"] in ("called", "never_called")]
    called = {row.fqn: row if row["kind"] == "called" else None for row in calls}
    trainable = {row.fqn for row in inventory if row["kind"] == "parameter" and row["trainable"]}
    kept = {owner for name in trainable.difference(lost) for owner in around(name)}
    places: dict[tuple[str, str], list[str]] = {}
    for name in lost:
        owner = owner_of(name)
        used = (measured.used_by_loss or {}).get(name, "unknown" if measured.training else "tensors")
        whole = [place for place in around(name) if place not in kept]
        places.setdefault(([owner, *whole][-1], _cause(called.get(owner, Row({})), used)), []).append(name)
    return places


def _cause(owner: Row | None, used: str) -> str:
    """Why a parameter got no gradient, by its module's call (None: it never ran) and by how the loss `used` it."""
    if owner is None:
        return ""
    if off := owner.get("gradients_off"):
        return _CHECKPOINT if off == "checkpoint" else _NO_GRAD
    return {"": _UNUSED, "numbers": _NUMBERS, "unknown": _UNKNOWN}.get(used, "")


def without_gradient(inventory: Iterable[Row], grads: Iterable[Row]) -> list[str]:
    """The names of the parameters that require a gradient and got none."""
    arrived = {row.fqn for row in grads}
    trainable = (row.fqn for row in inventory if row["kind"] == "parameter" and row["trainable"])
    return [name for name in trainable if name not in arrived]


class _ReadsZeros(ReadsValues, Protocol):
    inventory: Report | None
    output_grads: Report | None


class ZeroGradient(Check):
    """The gradient of a parameter is exactly zero everywhere: it arrived, but carries no information.

    A gradient that is zero by chance would be nonzero in some element. A whole tensor of zeros means that some factor
    is zero: a dead ReLU, a mask, a later layer with zero weights, or a loss that does not depend on this batch (heads
    of detectors, if no object is near). Such a factor zeroes the gradients of everything before it, so only the module
    nearest to the loss, whose gradient arrived first, is reported, with a count of the others. Only a warning, since
    some models initialise a last layer to zero on purpose (Goyal et al. 2017, section 5.1). A branch that stochastic
    depth or dropout skipped entirely in this run, which is common with a batch of two, is not reported, nor a layer's
    bias alone whose gradients cancel, as in the difference of two outputs that trains a critic. `hookcli run
    --check` makes it an error if every gradient was zero in each recorded step, of two or more: it learns nothing. It
    also knows what backward left, and so whether the program cleared the gradients before the optimizer's step.
    """

    id = "HK009"
    name = "zero-gradient"
    means = "dead units, a mask, or zero weights after this module (or, if the message says so, before it)"
    advice = "`hookcli activations MODEL --sort -zeros` shows where the zeros begin"
    follows = ("HK010", "HK011", "HK012", "HK014")
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
            more = f", as in {rest} more parameter{'s' * (rest > 1)}" if rest else ""
            why, remedy = _why(measured, zero, names)
            told = f"{why}{more}" if why.startswith(" (") else f"{more}{why}"
            finding = self.finding(owner, f"the gradient of {_listed(owner, names)} is all zero{told}", len(zero))
            finding = replace(finding, hint=remedy, remedy=remedy) if remedy else finding
            if course and course.zero == course.steps >= _RUN:
                message = f"{finding.message}; every gradient was zero in all {course.steps:,} recorded steps"
                finding = replace(finding, severity=ERROR, message=message)
            yield finding


def _reached(measured: ReadsWeightsAndGrads) -> set[str]:
    """The parameters that got a gradient, in a running program in any of its recorded steps."""
    before = measured.training.reached if measured.training else set()
    return {row.fqn for row in measured.grads.rows} | before


def _was_not_called(measured: ReadsInventory) -> str:
    course = measured.training
    if course and measured.step is not None and course.is_sample(measured.step):
        return f"was not called in any of {course.steps:,} recorded steps"
    return "was never called"


def _uncalled(measured: _ReadsCalls) -> list[Row]:
    """The modules that were not called, in a running program in none of its recorded steps, unless by chance."""
    idle = [row for row in of_kind(measured.inventory, "never_called") if row.fqn not in measured.called_by_chance]
    never = measured.training.uncalled if measured.training else None
    return [row for row in idle if never is None or row.fqn in never]


def _why(measured: _ReadsZeros, zero: Sequence[str], names: Sequence[str]) -> tuple[str, str]:
    """Where the zero factor is, as far as is known, and what to try if not the usual; `names` are the parameters of one
    module among all `zero` ones.

    The gradient of a bias is the gradient that flows back; that of a weight is its product with the layer's input. Two
    factors that are zero both, as of an adapter, each make the other's gradient zero; one alone gets a gradient itself.
    """
    owner = owner_of(names[0])
    of_owner = [row.fqn for row in measured.grads.rows if owner_of(row.fqn) == owner]
    reached = [name for name in of_owner if name not in zero]
    if f"{owner}.bias".lstrip(".") in reached:
        return " (the layer's input is zero)", ""
    arrived = _arrived(measured.output_grads, owner)
    factors = _zero_factors(measured, zero, owner) if arrived != 0 else []
    outside = f"; the gradient of its output is {number(arrived)}" if arrived else ""
    if factors:
        both = "both" if len(factors) == 2 else "all"
        return f": {' and '.join(factors)} are {both} zero, so each gets a zero gradient{outside}", _FACTORS
    if factor := _factor_after(measured, zero[0]):
        return f": {factor} is zero, so that zero flows back{outside}", _ZERO_FACTOR
    why, remedy = ("a factor inside it is zero" if arrived else ""), ""
    if len(zero) == len(measured.grads.rows):
        why, remedy = _zeroed(measured.training, arrived)
    if why:
        return f"{outside}: {why}", remedy
    return ("" if reached else " (zero flows back to it)"), ""


def _zeroed(course: TrainingCourse | None, arrived: float | None) -> tuple[str, str]:
    """Why all gradients are zero, though those of outputs (the largest is `arrived`) are not, and what to try."""
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
    return "every gradient was cleared before the optimizer's step", CLEAR_LATER


_LARGE = 1e4  # a norm; from 65,504 on it is infinite in float16
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
                return _short(place, factors) if len(factors) <= _FEW else []
    return []


def _factor_after(measured: _ReadsZeros, name: str) -> str:
    """The parameter that is zero, of those of the module whose gradients arrived just before; "" if none is.

    Biases, which often begin at zero, are no factors.
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


def _listed(owner: str, names: Sequence[str]) -> str:
    """The names of parameters within their module, or how many there are."""
    short = _short(owner, names)
    return ", ".join(short) if len(short) <= _FEW else f"any of {len(short)} parameters"


def _short(owner: str, names: Sequence[str]) -> list[str]:
    return [name.removeprefix(f"{owner}.") for name in names]
