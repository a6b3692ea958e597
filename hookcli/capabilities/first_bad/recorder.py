"""The part of first_bad in a recorded run: it has every step observed until the first bad value is found."""

from __future__ import annotations

from hookcli.capabilities.first_bad.search import SearchedStep, SearchState
from hookcli.record.observe.parts import BegunStep, RecordedRun, RecorderPart


class Recorder(RecorderPart):
    """Knows how far the search of the run has come; `first_bad`: "report" what it finds, or "stop" there, too."""

    def __init__(self, first_bad: str) -> None:
        self._stops = first_bad == "stop"
        self._search = SearchState()

    def begin_run(self, run: RecordedRun) -> None:
        if self._stops:
            self._search.when_found = run.end_program

    def wants(self, step: int) -> bool:
        """Every step is searched until a value is found."""
        return self._search.on

    def begin_step(self, step: BegunStep) -> SearchedStep:
        return SearchedStep(self._search, step)
