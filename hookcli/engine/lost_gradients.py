"""Measures why parameters get no gradient, or one that is all zero, in one more run for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from torch import Tensor

from hookcli.checks.measurements import Measurements
from hookcli.checks.unused import is_zero, without_gradient
from hookcli.engine.capture import Hooking, capture_run
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.errors import HookcliError
from hookcli.hooks.parameter_reach import ParameterReach
from hookcli.hooks.parts import uncompiled
from hookcli.hooks.session import HookSession
from hookcli.probes.grads import GradsProbe
from hookcli.probes.shared.unregistered import UnregisteredParts


def with_reasons(measured: Measurements, run: PreparedRun, wanted: Collection[str], hooking: Hooking) -> Measurements:
    """Add `used_by_loss` and `output_grads`, if they are wanted and some parameter has no gradient, or a zero one."""
    inventory, grads = measured.inventory, measured.grads
    run = replace(run, data=None)  # the first batch
    if "used_by_loss" in wanted and inventory and grads and (lost := without_gradient(inventory.rows, grads.rows)):
        measured = replace(measured, used_by_loss=used_by_loss(run, lost))
    if "output_grads" in wanted and grads and any(is_zero(row) for row in grads.rows):
        backward = replace(run, step=replace(run.step, otherwise="randn"))
        with suppress(HookcliError):
            (report,) = capture_run(backward, [GradsProbe("outputs")], replace(hooking, ops=None))
            measured = replace(measured, output_grads=report)
    return measured


def used_by_loss(run: PreparedRun, fqns: Sequence[str]) -> Mapping[str, bool] | None:
    """For each of these parameters, whether the loss is computed from it, even by way of a detach; None if unknown.

    One more forward follows them to the loss. The model, its inputs and the random state are afterwards as before.
    """
    session = HookSession(run.model)
    mode = ParameterReach([run.model.get_parameter(fqn) for fqn in fqns])  # a compiled model hands on its parts' names
    used = set[int]()

    def see(roots: Sequence[Tensor]) -> None:
        used.update(number for x in roots for number in mode.of(x))

    session.before_backward(see)
    step = replace(run.step, backward=True, otherwise="randn", passes=1, optimizer=None, state_dict=False)
    parts = preserved(UnregisteredParts(run.model), ())
    try:
        with step.mode(), uncompiled(run.model), preserved(run.model, run.inputs), parts, session, mode:
            step.run(session, *arguments(run.inputs), {})
    except Exception:  # also: the model, which ran before, does not run under a mode that follows its functions
        return None
    return {fqn: number in used for number, fqn in enumerate(fqns)}
