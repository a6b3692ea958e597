"""Finds out, in one step of a running program, whether the loss uses parameters that no gradient has reached."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from hookcli.hooks.clock import ProgramClock
from hookcli.hooks.parameter_reach import Guard, ParameterReach
from hookcli.hooks.session import HookSession
from hookcli.record.observe.naming import PlainNames
from hookcli.table.training import TrainingCourse

_OTHERS = 8  # parameters that gradients do reach, of which the loss must be seen to use one


class LossReach:
    """Follows parameters through the forwards of a step and its loss functions, past places where autograd does not.

    `course.without_gradient` names the parameters of the `module` that earlier recorded steps have left without a
    gradient, and gets to know how the loss is computed from each in `course.used_by_loss`. `guard` does the work, so
    that a failure ends nothing else.
    """

    part: ClassVar[str] = "the use of parameters by the loss"

    def __init__(
        self, module: nn.Module, name: PlainNames, course: TrainingCourse, clock: ProgramClock, guard: Guard
    ) -> None:
        parameters = {name(fqn): x for fqn, x in module.named_parameters()}
        self._course = course
        self._lost = [fqn for fqn in course.without_gradient if fqn in parameters]
        reached = [fqn for fqn in course.reached if fqn in parameters]
        others = reached[:: len(reached) // _OTHERS + 1]
        self._mode = ParameterReach([parameters[fqn] for fqn in (*self._lost, *others)], clock, guard)
        self._used: set[int] = set()
        self._guard = guard

    def attach(self, session: HookSession) -> None:
        """Follow them while forwards of this session run."""
        self._guard(partial(session.watch_functions, self._mode))

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        """Note what the tensors at which a backward pass begins were computed from."""
        self._used = self._used.union(*(self._guard(partial(self._mode.of, root)) or () for root in roots))

    def ended(self) -> None:
        """Note what is known now: nothing of a loss that was computed out of sight, or from Python's numbers."""
        self._guard(self.note)

    def note(self) -> None:
        """Note in the course how the loss is computed from each parameter, as far as this step has shown it."""
        self._course.followed += 1
        if not self._used.difference(range(len(self._lost))):
            return
        for number, fqn in enumerate(self._lost):
            if number in self._used:
                self._course.used_by_loss[fqn] = "tensors"
            elif number not in self._mode.left:
                self._course.used_by_loss[fqn] = ""
