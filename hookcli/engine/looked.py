"""Says how far a run of a compiled model with looks inside was from one without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.preserve import preserved
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, UserCode, message_of
from hookcli.hooks.session import HookSession
from hookcli.table.discrepancy import Discrepancy
from hookcli.tensors import tree
from hookcli.tensors.distance import SameBits, compare, resolve


class Witness:
    """The outputs and parameters' gradients of the first forward and backward that it sees."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.outputs: list[Tensor] | None = None
        self.gradients: list[Tensor | None] = []

    def see(self, output: object) -> None:
        """Take them; to be called when the model has returned this output, and backward is over."""
        if self.outputs is None:
            self.outputs = [x.detach() for _, x in tree.leaves(output)]
            self.gradients = [p.grad for p in self._model.parameters()]


def moved_by_looks(model: nn.Module, inputs: Any, step: Step, looked: Witness, restore: bool) -> str:
    """Run the compiled model once more, without looks, and say how far the run with looks was from that."""
    plain = Witness(model)
    once = replace(step, ran=plain.see, optimizer=None, state_dict=False)
    try:
        code = UserCode(partial(failure.crashed, model, {}))
        with step.mode(), preserved(model, inputs, parameters=restore), code:
            once.run(HookSession(model), *arguments(inputs), {})
    except HookcliError as error:
        return f"not compared with a run without looks, which failed: {message_of(error).partition(chr(10))[0]}"
    return _distance(plain, looked)


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
