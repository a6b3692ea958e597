"""The part of keep_bad in a recorded run: it keeps the call that returned the first value that is not finite."""

from __future__ import annotations

from pathlib import Path

from hookcli.capabilities.keep_bad.kept_call import KeepBad
from hookcli.hooks.operators.calls import LOSS
from hookcli.hooks.session import HookSession
from hookcli.record.file.record_lines import NonFinite
from hookcli.record.file.views.run_lines import non_finite_line
from hookcli.record.observe.parts import BegunStep, RecorderPart, StepPart
from hookcli.system.escaping import shell_path
from hookcli.system.torchrun import joined_world
from hookcli.table.names import is_operator, owner_of


class Recorder(RecorderPart):
    """Knows the folder for the module."""

    def __init__(self, keep_bad: str) -> None:
        self._folder = Path(keep_bad)

    def begin_step(self, step: BegunStep) -> StepPart:
        """A step begins whose calls may have to be kept."""
        return StepOfKeepBad(KeepBad(self._folder, operators=step.operators))


class StepOfKeepBad(StepPart):
    """Keeps calls in a step until one is found to have returned the first value that is not finite."""

    def __init__(self, kept: KeepBad) -> None:
        self._kept = kept

    def attach(self, session: HookSession) -> None:
        self._kept.attach(session)

    def found(self, fqn: str, value: NonFinite) -> str:
        """Keep the module, and say how to reproduce the value; else why it was not kept."""
        if value.fqn.startswith(LOSS):
            return "not kept: only modules can be, and the loss function computes this value"
        here = joined_world()  # all ranks may share the folder
        rank = f"-rank{here.rank}" if here.size > 1 else ""
        name = f"{value.model}-step{value.step}-{value.fqn or 'model'}{rank}"
        owner = owner_of(fqn) if is_operator(fqn) else fqn  # the module that was given all that led there
        try:
            path, missing = self._kept.write(owner, name, non_finite_line(value))
        except Exception as error:  # a full disk, or a tensor that safetensors can't hold
            return f"it could not be kept ({type(error).__name__}: {error})"
        if not path:
            what = "operator in a module that returned finite values" if is_operator(fqn) else value.what
            return f"modules are kept for outputs, not for a{'n' * (what[0] in 'aeiou')} {what}"
        more = ', once each "= ..." in it is filled in' if missing else ""
        return f"`python {shell_path(path)}` reproduces it{more}"
