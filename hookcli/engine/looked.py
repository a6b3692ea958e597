"""Says how far a run of a compiled model with looks inside was from one without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, UsageError, UserCode
from hookcli.hooks.option_values import UNFUSED
from hookcli.hooks.parts import has_compiled
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.programs import backends_of, modules_inside
from hookcli.probes.base import Probe
from hookcli.probes.shared.unregistered import UnregisteredParts
from hookcli.table import Report
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.meta import with_notes
from hookcli.tensors import tree
from hookcli.tensors.distance import SameBits, compare, resolve


class Witness:
    """Copies of the outputs and parameters' gradients of the first forward and backward that it sees.

    What a program returned may lie in memory that its next run, or the model, writes to. `error`: why it saw none.
    `unseen`: no module was seen inside a compiled program, although some were hooked that should run there.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.outputs: list[Tensor] | None = None
        self.gradients: list[Tensor | None] = []
        self.error: HookcliError | None = None
        self.unseen = False

    def see(self, output: object) -> None:
        """Copy them; to be called when the model has returned this output, and backward is over."""
        if self.outputs is None:
            self.outputs = [x.detach().clone() for _, x in tree.leaves(output)]
            self.gradients = [None if p.grad is None else p.grad.detach().clone() for p in self._model.parameters()]

    def note(self, session: HookSession) -> None:
        """Note whether the session that has ended saw modules inside compiled programs."""
        inside = any(id(module) in session.modules.hooked for module in modules_inside(session.model))
        self.unseen = inside and not session.ran_inside


def seen_inside(run: PreparedRun, probes: Sequence[Probe], shown: bool, casts: bool) -> list[str]:
    """The backends of the compiled parts that probes see inside; empty if compiled parts are to run uncompiled.

    `shown`: the hooks are of kinds that programs can show. Raises UsageError if no program would emulate `casts`.
    """
    looks = shown and all(p.inside_compiled for p in probes) and any(p.values for p in probes)
    here = looks and run.info.get("device") != "meta" and run.step.share.of == 1
    backends = backends_of(run.model) if here else []
    if casts:
        require_casts(backends, has_compiled(run.model))
    return backends


def require_casts(backends: Sequence[str], compiled: bool) -> None:
    """Raises UsageError where none of the backends fuses operators, and so none can emulate casts; `compiled`: the
    model is, even if nothing is to run compiled."""
    if backends and not set(UNFUSED).issuperset(backends):
        return
    why = f"inductor alone fuses, not {', '.join(backends)}" if backends else "compiled parts run uncompiled here"
    advice = f"{why}; leave it out" if compiled else "the model is not compiled; add --compile"
    raise UsageError(f"--emulate-casts: {advice}", option="emulate-casts")


def without_looks(model: nn.Module, inputs: Any, step: Step, fastpath: bool = True) -> Witness:
    """Run the compiled model once, without looks; afterwards it is as it was.

    Where other sizes follow, this comes before them: a function that torch.compile has seen to get several sizes is
    compiled for any size, and such a program rounds otherwise.
    """
    plain = Witness(model)
    once = replace(step, ran=plain.see, optimizer=None, state_dict=False)
    code, session = UserCode(partial(failure.crashed, model, {})), HookSession(model, fastpath=fastpath)
    try:
        with once.mode(), preserved(UnregisteredParts(model), ()), preserved(model, inputs), code, session:
            once.run(session, *arguments(inputs), {})
    except HookcliError as error:
        plain.error = error
    return plain


def plain_run(run: PreparedRun, step: Step, fastpath: bool) -> Witness:
    """A run `without_looks`, before one with looks."""
    run.feedback.stage(f"running {run.name} compiled, without looks")
    plain = without_looks(run.model, run.inputs, step, fastpath)
    run.feedback.stage(f"running {run.name} compiled, with looks")
    return plain


def compared(reports: Sequence[Report], session: HookSession, plain: Witness, looked: Witness) -> list[Report]:
    """The reports of a session, which say how far the run that was `looked` at was from the `plain` one.

    Raises the plain run's error: with `fullgraph=True`, say, which looks leave to the model's own program.
    """
    if plain.error:
        plain.error.reports = tuple(reports)
        raise plain.error
    looked.note(session)
    moved = moved_by_looks(session.model, plain, looked, session.fastpath)
    how = [f"{report.meta['compiled']}: {moved}" for report in reports]
    metas = [with_notes({**r.meta, "compiled": text}, f"compiled {text}") for r, text in zip(reports, how, strict=True)]
    return [replace(report, meta=meta) for report, meta in zip(reports, metas, strict=True)]


def moved_by_looks(model: nn.Module, plain: Witness, looked: Witness, fastpath: bool = True) -> str:
    """How far the run that was `looked` at was from the `plain` one."""
    if looked.unseen:
        return "no module of this report ran inside a compiled program"
    moved = _distance(plain, looked)
    if fastpath and any(isinstance(m, nn.TransformerEncoderLayer) and not m.training for m in model.modules()):
        moved += ", in which TransformerEncoderLayer takes its fused path"
    return moved


def _distance(plain: Witness, looked: Witness) -> str:
    """How far two runs of one model were from each other, in words."""
    outputs = [*zip(plain.outputs or (), looked.outputs or (), strict=False)]
    gradients = [
        (torch.zeros_like(known) if a is None else a, torch.zeros_like(known) if b is None else b)
        for a, b in zip(plain.gradients, looked.gradients, strict=True)
        if (known := b if a is None else a) is not None
    ]
    bits = SameBits()
    for a, b in (*outputs, *gradients):
        bits.see(a, b)
    if bits:
        return f"outputs {'and gradients ' if gradients else ''}bit-identical to the compiled model's without looks"
    parts = [f"outputs by {_apart(outputs):.1e}"]
    parts += [f"gradients of parameters by {_apart(gradients):.1e}"] if gradients else []
    return f"looks move {', '.join(parts)} of their norm, against the compiled model without looks"


def _apart(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The distance of all pairs together, relative to the norm of the first sides."""
    figures = [figures for a, b in pairs if a.shape == b.shape and (figures := compare(a, b)) is not None]
    return Discrepancy.merge(resolve(figures)).rel_l2
