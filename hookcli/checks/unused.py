"""HK006 to HK008: modules that forward never calls, and parameters that backward never reaches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from hookcli.checks.base import ERROR, WARNING, Check, listed_within, of_kind
from hookcli.checks.measurements import ReadsInventory, ReadsWeightsAndGrads
from hookcli.table import Finding, Row
from hookcli.table.names import around, is_within, is_within_any, owner_of

# Layers of torch.nn without parameters that have an effect: if one is never called, the call was forgotten.
_LAYERS = ("Dropout", "ReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "ELU", "Softmax", "Pool", "Hardswish", "Mish")


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
    also where no optimizer took it (HK053). Parameters that no optimizer has are not reported: the program trains
    others, such as a new head on a body that runs without gradients. The finding is only a warning if other steps may
    differ: if fewer than five steps in a row were recorded, or if the module never ran and its neighbours did not run
    in every step, as in a mixture of experts. It is also a warning if the module never ran and is not part of a list,
    like a head for another task, or if it ran with gradients off while other parameters get gradients, like a trunk
    below a new head. Parameters that the program itself moves, like those of a target network, are not reported.

    `hookcli check` follows such parameters to the loss, past any detach; where their values leave PyTorch, as by item()
    or numpy(), it changes them to see whether the loss changes. `run --check` follows them in the next recorded step,
    but not in compiled code, nor past numbers. If the loss is computed from the parameter, something on the way cuts
    the gradient off. If it is not, though the module ran, the finding is only a warning: a mask token, or a head for
    another task, can't get a gradient in this one. It is also a warning if a running program does not show which of the
    two is the case.
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
            which = listed_within(owner, names)
            finding = self.finding(owner, f"no gradient reached {which}{steps}{cause}", len(names))
            if cause in _REMEDIES:
                finding = replace(finding, hint=_REMEDIES[cause], remedy=_REMEDIES[cause])
            may_be_meant = cause in (_UNUSED, _UNKNOWN)
            if course and not may_be_meant:
                uncalled = (course.uncalled or set()).issuperset(map(owner_of, names))
                of_list = owner.rpartition(".")[2].isdigit()  # a loop may leave out its last one
                may_be_meant = (uncalled and not of_list) or (cause == _NO_GRAD and bool(_reached(measured)))
            yield replace(finding, severity=WARNING) if steps or may_be_meant else finding


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
