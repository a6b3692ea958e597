"""The part of first_bad in a recorded run: it has every step observed until the first bad value is found."""

from __future__ import annotations

from hookcli.capabilities.first_bad.search import SearchedStep, SearchState
from hookcli.record.file.record_lines import NonFinite
from hookcli.record.observe.parts import BegunStep, RecordedRun, RecorderPart


class Recorder(RecorderPart):
    """Knows how far the search of the run has come; `first_bad`: "report" what it finds, or "stop" there, too."""

    def __init__(self, first_bad: str) -> None:
        self._stops = first_bad == "stop"
        self._search = SearchState()

    def begin_run(self, run: RecordedRun) -> None:
        if self._stops:
            self._search.found = run.end_program

    def wants(self, step: int) -> bool:
        """Every step is searched until a value is found."""
        return self._search.on

    def begin_step(self, step: BegunStep) -> SearchedStep:
        return SearchedStep(self._search, step)

    def steps_end(self) -> NonFinite | None:
        """The infinities of which nothing has told whether they are meant, as the program ends."""
        if self._search.on and self._search.doubtful:
            self._search.found()
            return self._search.doubtful
        return None
