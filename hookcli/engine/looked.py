"""Says how far a run of a compiled model with looks inside was from one without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import preserved
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, UserCode
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.programs import backends_of
from hookcli.probes.base import Probe
from hookcli.table import Report
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.meta import with_notes
from hookcli.tensors import tree
from hookcli.tensors.distance import SameBits, compare, resolve


class Witness:
    """Copies of the outputs and parameters' gradients of the first forward and backward that it sees.

    What a program returned may lie in memory that its next run, or the model, writes to. `error`: why it saw none.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.outputs: list[Tensor] | None = None
        self.gradients: list[Tensor | None] = []
        self.error: HookcliError | None = None

    def see(self, output: object) -> None:
        """Copy them; to be called when the model has returned this output, and backward is over."""
        if self.outputs is None:
            self.outputs = [x.detach().clone() for _, x in tree.leaves(output)]
            self.gradients = [None if p.grad is None else p.grad.detach().clone() for p in self._model.parameters()]


def seen_inside(run: PreparedRun, probes: Sequence[Probe]) -> list[str]:
    """The backends of the compiled parts that probes see inside; empty if compiled parts are to run uncompiled."""
    looks = all(p.inside_compiled for p in probes) and any(p.values for p in probes)
    return backends_of(run.model) if looks and run.info.get("device") != "meta" and run.step.share.of == 1 else []


def without_looks(model: nn.Module, inputs: Any, step: Step, fastpath: bool = True) -> Witness:
    """Run the compiled model once, without looks; afterwards it is as it was.

    Where other sizes follow, this comes before them: a function that torch.compile has seen to get several sizes is
    compiled for any size, and such a program rounds otherwise.
    """
    plain = Witness(model)
    once = replace(step, ran=plain.see, optimizer=None, state_dict=False)
    code, session = UserCode(partial(failure.crashed, model, {})), HookSession(model, fastpath=fastpath)
    try:
        with once.mode(), preserved(model, inputs), code, session:
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


def compared(reports: Sequence[Report], model: nn.Module, plain: Witness, looked: Witness) -> list[Report]:
    """The reports, which say how far the run that was `looked` at was from the `plain` one.

    Raises the plain run's error: with `fullgraph=True`, say, which looks leave to the model's own program.
    """
    if plain.error:
        plain.error.reports = tuple(reports)
        raise plain.error
    moved = moved_by_looks(model, plain, looked, all(report.meta.get("fastpath") for report in reports))
    how = [f"{report.meta['compiled']}: {moved}" for report in reports]
    metas = [with_notes({**r.meta, "compiled": text}, f"compiled {text}") for r, text in zip(reports, how, strict=True)]
    return [replace(report, meta=meta) for report, meta in zip(reports, metas, strict=True)]


def moved_by_looks(model: nn.Module, plain: Witness, looked: Witness, fastpath: bool = True) -> str:
    """How far the run that was `looked` at was from the `plain` one."""
    moved = _distance(plain, looked)
    if fastpath and any(isinstance(m, nn.TransformerEncoderLayer) and not m.training for m in model.modules()):
        moved += ", in which TransformerEncoderLayer takes its fused path"
    return moved


def _distance(plain: Witness, looked: Witness) -> str:
    outputs = [*zip(plain.outputs or (), looked.outputs or (), strict=False)]
    gradients = [
        (a, b) for a, b in zip(plain.gradients, looked.gradients, strict=True) if a is not None and b is not None
    ]
    bits = SameBits()
    for a, b in (*outputs, *gradients):
        bits.see(a, b)
    without = "the compiled model without looks"
    if bits:
        return f"outputs {'and gradients ' if gradients else ''}bit-identical to those of {without}"
    parts = [f"outputs by {_apart(outputs):.1e}"]
    parts += [f"gradients of parameters by {_apart(gradients):.1e}"] if gradients else []
    return f"looks move {', '.join(parts)} of their norm, against {without}"


def _apart(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The distance of all pairs together, relative to the norm of the first sides."""
    figures = [figures for a, b in pairs if a.shape == b.shape and (figures := compare(a, b)) is not None]
    return Discrepancy.merge(resolve(figures)).rel_l2
