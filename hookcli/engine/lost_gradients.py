"""Tells why parameters get no gradient: one more forward follows them to the loss, past any detach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.hooks.parameter_reach import ParameterReach
from hookcli.hooks.parts import uncompiled
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.unregistered import UnregisteredParts


def used_by_loss(run: PreparedRun, fqns: Sequence[str]) -> Mapping[str, bool] | None:
    """For each of these parameters, whether the loss is computed from it, be it detached; None if that can't be told.

    The model, its inputs and the random state are afterwards as before.
    """
    parameters = dict(run.model.named_parameters())
    followed = [parameters[fqn] for fqn in fqns]
    mode, session = ParameterReach(followed), HookSession(run.model)
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
