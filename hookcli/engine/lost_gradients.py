"""Measures why parameters get no gradient, or one that is all zero, and modules no call, in one more run for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import torch
from torch import Tensor

from hookcli.checks.measurements import Measurements
from hookcli.checks.unused import without_gradient
from hookcli.checks.zero_gradients import is_zero
from hookcli.engine.capture import Hooking, capture, capture_run
from hookcli.engine.eval_mode import in_eval
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, ModelError
from hookcli.hooks.parameter_reach import ParameterReach
from hookcli.hooks.parts import uncompiled
from hookcli.hooks.session import HookSession
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.probes.shared.unregistered import UnregisteredParts
from hookcli.table import Row
from hookcli.table.marks import is_lost


def with_reasons(measured: Measurements, run: PreparedRun, wanted: Collection[str], hooking: Hooking) -> Measurements:
    """Add `used_by_loss`, `output_grads`, `called_in_eval` and `called_by_chance`, if wanted and some parameter
    has no gradient, or a zero one, or training mode does not call some module.

    Gradients of operators' outputs are added where one of a parameter is not finite and operators are watched.
    """
    inventory, grads = measured.inventory, measured.grads
    run = replace(run, data=None)  # the first batch
    if "called_by_chance" in wanted and inventory:
        measured = replace(measured, called_by_chance=called_by_chance(run, inventory.rows))
    if "used_by_loss" in wanted and inventory and grads and (lost := without_gradient(inventory.rows, grads.rows)):
        measured = replace(measured, used_by_loss=used_by_loss(run, lost))
    rows = grads.rows if grads else ()
    ops = hooking.ops if any(map(is_lost, rows)) else None
    if "output_grads" in wanted and (ops or any(map(is_zero, rows))):
        backward = replace(run, step=replace(run.step, otherwise="randn"))
        with suppress(HookcliError):
            (report,) = capture_run(backward, [GradsProbe("outputs")], replace(hooking, ops=ops))
            measured = replace(measured, output_grads=report)
    if "called_in_eval" in wanted and inventory and run.model.training:
        measured = replace(measured, called_in_eval=called_in_eval(run, inventory.rows))
    return measured


def called_in_eval(run: PreparedRun, inventory: Iterable[Row]) -> Collection[str]:
    """The modules of this inventory that the run did not call, and one more forward does in eval mode."""
    uncalled = {row.fqn for row in inventory if row["kind"] == "never_called"}
    with suppress(HookcliError), in_eval(run.model):
        rows = capture(run.model, run.inputs, probes=InventoryProbe(backward=False)).rows if uncalled else ()
        return uncalled & {row.fqn for row in rows if row["kind"] == "called"}
    return ()


_FORWARDS = 4, 32  # the second number for the rest, if the first called some


def called_by_chance(run: PreparedRun, inventory: Iterable[Row]) -> Collection[str]:
    """The modules of this inventory that the run did not call, and further forwards do, drawing other numbers."""
    left = uncalled = {row.fqn for row in inventory if row["kind"] == "never_called"}
    for forwards in _FORWARDS:
        if left and (forwards == _FORWARDS[0] or left != uncalled):
            with suppress(HookcliError):
                probe, step = InventoryProbe(backward=False), Step(passes=forwards)
                rows = capture(run.model, run.inputs, probes=probe, step=step).rows
                left = {row.fqn for row in rows if row["kind"] == "never_called"} & left
    return uncalled - left


def used_by_loss(run: PreparedRun, fqns: Sequence[str]) -> Mapping[str, str] | None:
    """How the loss is computed from each of these parameters, even by way of a detach: by "tensors", or by "numbers" of
    Python or NumPy on the way; "" if it is not. None if unknown.

    One more forward follows them to the loss. If values became numbers on the way, further ones change their parameters
    to see whether the loss changes. The model, its inputs and the random state are afterwards as before.
    """
    parameters = [run.model.get_parameter(fqn) for fqn in fqns]  # a compiled model hands on its parts' names
    mode = ParameterReach(parameters)
    used = set[int]()
    try:
        before = _roots(run, lambda roots: used.update(number for x in roots for number in mode.of(x)), mode)
    except Exception:  # also: the model, which ran before, does not run under a mode that follows its functions
        return None
    changing = set[int]()
    with suppress(Exception):
        if (left := sorted(mode.left - used)) and _same(before, _roots(run)):
            changing = _changing(run, parameters, left, before)
    ways = dict.fromkeys(changing, "numbers") | dict.fromkeys(used, "tensors")
    return {fqn: ways.get(number, "") for number, fqn in enumerate(fqns)}


def _roots(
    run: PreparedRun,
    see: Callable[[Sequence[Tensor]], object] = id,
    mode: ParameterReach | None = None,
    changed: Sequence[Tensor] = (),
) -> list[Tensor]:
    """The tensors at which the backward of another run begins, which `see` gets; of a run with `changed` parameters."""
    roots: list[Tensor] = []
    session = HookSession(run.model)

    def seen(tensors: Sequence[Tensor]) -> None:
        see(tensors)
        roots.extend(x.detach().clone() for x in tensors)

    session.before_backward(seen)
    step = replace(run.step, backward=True, otherwise="randn", passes=1, optimizer=None, state_dict=False)
    parts = preserved(UnregisteredParts(run.model), ())
    with step.mode(), uncompiled(run.model), preserved(run.model, run.inputs), parts, session, mode or nullcontext():
        with torch.no_grad():
            for x in changed:
                x.mul_(2).add_(1)
        step.run(session, *arguments(run.inputs), {})
    return roots


def _changing(run: PreparedRun, parameters: Sequence[Tensor], numbers: list[int], before: list[Tensor]) -> set[int]:
    """The numbers of the parameters without which the loss would be another: all are changed at once, then halves."""
    try:
        same = _same(before, _roots(run, changed=[parameters[number] for number in numbers]))
    except ModelError:  # what it computes from them was an index or a size
        same = False
    if same or len(numbers) == 1:
        return set() if same else {*numbers}
    middle = len(numbers) // 2
    halves = (numbers[:middle], numbers[middle:])
    return set[int]().union(*(_changing(run, parameters, half, before) for half in halves)) or {*numbers}


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    """True if the tensors are equal, NaN where the other has NaN."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )
