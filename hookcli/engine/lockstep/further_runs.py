"""Runs beside that of a comparison: before it to find operators, after it to find an origin, and to take times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from hookcli.diff.align import Alignment, NamedPart
from hookcli.diff.origin import Origin, between_modules, origin_of
from hookcli.diff.times import with_both_times
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.inputs import arguments
from hookcli.engine.lockstep.lockstep import ProcessState
from hookcli.engine.lockstep.side import UNSEEN, Side
from hookcli.engine.preserve import preserved
from hookcli.engine.setting import Feedback
from hookcli.engine.step import Step
from hookcli.engine.timing import TimedModel, time_passes, why_untimed
from hookcli.errors import HookcliError
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession
from hookcli.table import Report


def operators_of(side: Side, step: Step, ops: str, hidden: Collection[str] = ()) -> list[NamedPart]:
    """The comparable operators of a forward, as they first ran; `hidden` modules take no hooks. Never raises."""
    operators: dict[NamedPart, None] = {}

    def note(event: HookEvent) -> None:
        if event.operator and not event.operator.uninitialised:  # such operators are in no dump either
            operators[NamedPart(event.fqn, event.operator.name)] = None

    session = HookSession(side.model, fastpath=side.fastpath, ops=ops)
    hide(session, hidden)
    forward = replace(step, backward=False, graph=step.backward, passes=1)
    place = side.tree() if side.tree else nullcontext()
    with place, preserved(side.model, side.inputs, parameters=False), suppress(Exception), session:
        session.forward(note)
        forward.run(session, *arguments(side.inputs), {})
    return [*operators]


def hide(session: HookSession, modules: Collection[str]) -> None:
    """Keep a session from hooking parts of compiled modules, and from having compiled modules compiled again."""
    session.unhooked |= dict.fromkeys(modules, UNSEEN)
    session.past_compiled = True


def origin_between_modules(
    run: Any, again: Callable[..., Any], tolerance: Tolerance, seed: int, feedback: Feedback
) -> tuple[Origin | None, KeyboardInterrupt | None]:
    """Find where differences that arose between modules began, by `again(step=...)`; also return an interrupt."""
    if not between_modules(run.pairs.rows(tolerance, complete=True)):
        return None, None
    second = again(step=replace(run.step, backward=False, graph=run.step.backward, passes=1))
    errors = second.execute(seed, feedback, [(*(side.inputs for side in second.sides), None)])
    origin = None if any(errors) else origin_of(second.pairs.rows(tolerance, complete=True))
    return origin, next((error for error in errors if isinstance(error, KeyboardInterrupt)), None)


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
    """Time both sides, each in its own state; `hidden` modules take no hooks. A failure is named in `skipped`."""
    models = [
        TimedModel(
            side.model,
            side.inputs,
            step,
            side.fastpath,
            own,
            ops,
            unhooked=dict.fromkeys(parts, ""),
            within=state,
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
