"""Times the two models of a comparison, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from hookcli.diff.align import Alignment
from hookcli.diff.times import with_both_times
from hookcli.engine.feedback import Feedback
from hookcli.engine.lockstep.process_state import ProcessState
from hookcli.engine.lockstep.side import Side
from hookcli.engine.step import Step
from hookcli.engine.timing import TimedModel, time_passes, why_untimed
from hookcli.errors import HookcliError
from hookcli.hooks.edits.base import Edit
from hookcli.table import Report

AddTimes = Callable[[Report, Alignment], Report]
"""Adds the times of both sides to the report of their comparison."""


def time_sides(
    sides: Sequence[Side],
    step: Step,
    states: Sequence[ProcessState],
    hidden: Sequence[set[str]],
    edits: Sequence[Sequence[Edit]],
    ops: str | None,
    feedback: Feedback,
) -> AddTimes:
    """Time both sides, each in its own `states`; `hidden` are modules that take no hooks. `ops`: see Hooking.

    A side that can't be timed is named in the report's `skipped`.
    """
    models = [
        TimedModel(
            side.model,
            side.inputs,
            step,
            side.fastpath,
            own,
            ops,
            unhooked=dict.fromkeys(parts, ""),
            within=partial(_entered, state),
            warms_up=bool(side.compile),
        )
        for side, state, parts, own in zip(sides, states, hidden, edits, strict=True)
    ]
    try:
        (a, b), note = time_passes(*models, feedback=feedback)
    except HookcliError as error:
        reason = why_untimed(error)
        return lambda report, alignment: replace(report, skipped=[*report.skipped, reason])
    return lambda report, alignment: with_both_times(report, a, b, alignment.in_b, note)


@contextmanager
def _entered(state: ProcessState) -> Iterator[None]:
    state.enter()
    try:
        yield
    finally:
        state.leave()
