"""Finds the operators at which two models begin to differ, if that is between their modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hookcli.diff.origin import Origin, between_modules, origin_of
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.feedback import Feedback


def origin_between_modules(
    run: Any, again: Callable[..., Any], tolerance: Tolerance, seed: int, feedback: Feedback
) -> tuple[Origin | None, KeyboardInterrupt | None]:
    """The origin of the differences of a comparison that arose between modules; and an interrupt that came meanwhile.

    `again(step=...)` makes the same comparison with operators; it runs one forward of each side on the first batch.
    """
    if not between_modules(run.pairs.rows(tolerance, complete=True)):
        return None, None
    second = again(step=replace(run.step, backward=False, graph=run.step.backward, passes=1))
    errors = second.execute(seed, feedback, [(*(side.inputs for side in second.sides), None)])
    found = None if any(errors) else origin_of(second.pairs.rows(tolerance, complete=True))
    return found, next((error for error in errors if isinstance(error, KeyboardInterrupt)), None)
