"""Further runs of both sides of a comparison: where a difference begins, how far each side is from float64, and the
error of each module alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hookcli.diff.origin import Origin, between_modules, origin_of
from hookcli.diff.precision import Precision, Rows, by_place
from hookcli.diff.tolerance import Tolerance
from hookcli.engine import failure
from hookcli.engine.lockstep.side import Side, error_to_raise
from hookcli.engine.preserve import copied
from hookcli.engine.run_info import model_dtype
from hookcli.engine.setting import Feedback
from hookcli.errors import HookcliError, ModelError, UsageError, UserCode, message_of
from hookcli.sources.base import copy_model
from hookcli.table import Skipped
from hookcli.tensors import tree

_NO_FLOAT64 = "no run in float64 to judge both sides by"


@dataclass(frozen=True)
class Further:
    """Runs a pair of sides again by `again(sides, ...)`, on the first batch and its `target`."""

    again: Callable[..., Any]
    sides: tuple[Side, Side]
    target: object
    seed: int
    feedback: Feedback

    def origin(self, run: Any, tolerance: Tolerance) -> Origin | None:
        """Find where differences that arose between modules began, by their operators. Raises KeyboardInterrupt."""
        if any(run.inside) or not between_modules(run.pairs.rows(run.tolerated(tolerance), complete=True)):
            return None
        step = replace(run.step, backward=False, graph=run.step.backward, passes=1)
        second = self.again(self.sides, step=step, select=None, ops="functions")
        errors = second.execute(self.seed, self.feedback, [(*(side.inputs for side in second.sides), None)])
        for error in errors:
            if isinstance(error, KeyboardInterrupt):
                raise error
        return None if any(errors) else origin_of(second.pairs.rows(second.tolerated(tolerance), complete=True))

    def precision(self, run: Any, *, float64: bool, isolate: bool) -> Precision | None:
        """Make the runs that are asked for, after a comparison; None if there are none. Raises KeyboardInterrupt."""
        precision = Precision()
        if isolate:
            self.feedback.stage("running each module of B on what A's received")
            compared = by_place(run.pairs.rows(Tolerance(), complete=True))
            self._try(
                "--isolate", precision, lambda: precision.isolate(compared, self._rows(*self.sides, isolate=True))
            )
        a, b = self.sides
        if float64 and a.computes != b.computes:
            wider = b if model_dtype(b.model).itemsize > model_dtype(a.model).itemsize else a
            self._try(_NO_FLOAT64, precision, lambda: self._judge(precision, wider, run.unlike))
        return precision if precision.values or precision.skipped else None

    def _judge(self, precision: Precision, wider: Side, unlike: str) -> None:
        if unlike or any(x.is_mps for x in wider.model.parameters()):
            raise UsageError(unlike or "MPS has none")
        self.feedback.stage(f"running {wider.name or type(wider.model).__name__} in float64")
        exact = in_float64(wider)
        precision.judge(*(self._rows(exact, side) for side in self.sides))

    def _rows(self, a: Side, b: Side, *, isolate: bool = False) -> Rows:
        second = self.again((a, b), isolate=isolate)
        inputs = copied(a.inputs), copied(b.inputs)
        if error := error_to_raise(second.execute(self.seed, self.feedback, [(*inputs, self.target)]), second.sides):
            raise error
        if a.exact and not second.drew_alike:
            raise UsageError("it draws other random numbers")
        return by_place(second.pairs.rows(Tolerance(), complete=True))

    def _try(self, what: str, precision: Precision, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            if not (isinstance(error, HookcliError) or failure.out_of_memory(error)):
                raise  # a bug of hookcli's
            precision.skipped.append(Skipped("", f"{what}: {message_of(error).splitlines()[0]}"))


def in_float64(side: Side) -> Side:
    """A side that computes in float64, uncompiled, what the given one does."""

    def cast(path: str, x: Tensor) -> Tensor:
        return x.to(torch.float64) if x.is_floating_point() else x

    with UserCode(lambda error: ModelError(failure.describe(error))):
        inputs = tree.replace(copied(side.inputs), tree.once(cast))
        model = copy_model(side.model).double()
    return replace(side, model=model, inputs=inputs, compile={}, amp=None, attention=None, exact=True)
