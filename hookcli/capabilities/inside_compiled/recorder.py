"""The part of inside_compiled in a recorded run: it decides which steps are seen inside compiled parts."""

from __future__ import annotations

from hookcli.capabilities.inside_compiled.trials import InsideCompiled
from hookcli.record.observe.parts import RecordedRun, RecorderPart


class Recorder(RecorderPart):
    """Has recorded steps run programs with looks in place of those that torch.compile has made."""

    def __init__(self, *, inside_compiled: bool) -> None:
        assert inside_compiled

    def begin_run(self, run: RecordedRun) -> None:
        self._run = run

    def inside(self) -> InsideCompiled:
        return InsideCompiled(self._run.compilations)
