"""The operators of a side: a run before the comparison finds them, so that both sides' are aligned as a whole."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import replace

from hookcli.diff.align import NamedPart
from hookcli.engine.inputs import arguments
from hookcli.engine.lockstep.compiled import UNSEEN
from hookcli.engine.lockstep.side import Side
from hookcli.engine.preserve import preserved
from hookcli.engine.run_info import RunInfo
from hookcli.engine.step import Step
from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession


def operators_of(side: Side, step: Step, ops: str, hidden: Collection[str] = ()) -> list[NamedPart]:
    """The operators of a forward as `step` makes it whose values can be compared, in the order in which they first ran.

    If the model fails, those until then: its error is that of the run to come. `hidden` modules take no hooks.
    """
    found: dict[NamedPart, None] = {}

    def note(event: HookEvent) -> None:
        if event.operator and not event.operator.uninitialised:  # such operators are in no dump either
            found[NamedPart(event.fqn, event.operator.name)] = None

    session = HookSession(side.model, fastpath=side.fastpath, ops=ops)
    hide(session, hidden)
    forward = replace(step, backward=False, graph=step.backward, passes=1)
    place = side.tree() if side.tree else nullcontext()
    with place, preserved(side.model, side.inputs, parameters=False), suppress(Exception), session:
        session.forward(note)
        forward.run(session, *arguments(side.inputs), RunInfo())
    return [*found]


def hide(session: HookSession, modules: Collection[str]) -> None:
    """Keep a session from hooking parts of compiled modules, and from having compiled modules compiled again."""
    session.unhooked |= dict.fromkeys(modules, UNSEEN)
    session.past_compiled = True
