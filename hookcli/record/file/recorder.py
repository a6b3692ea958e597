"""Takes what an observer sees: into a file at once, and of each model what the summary at the end needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

from hookcli.record.file.record import Bad, End, Header, Ran, Window
from hookcli.record.file.summary import bad_line, summary
from hookcli.record.file.writer import RecordWriter


def new_header(name: str, argv: Sequence[str], every: int) -> Header:
    """The header of a record that begins now. Imports nothing to tell its version."""
    versions = {"python": sys.version.split()[0]}
    for distribution in ("torch", "hookcli"):
        with suppress(PackageNotFoundError):
            versions[distribution] = version(distribution)
    return Header(name, list(argv), datetime.now(UTC).isoformat(timespec="seconds"), every, versions)


class Recorder:
    """A Sink. Keeps the last window of each model and phase, so that memory does not grow with steps."""

    def __init__(self, writer: RecordWriter, header: Header, say: Callable[[str], None], debug: bool = False) -> None:
        self.path = writer.path
        self.kept = True
        self._failed = False
        self.latest: dict[tuple[str, str], Window] = {}
        self._writer = writer
        self._header = header
        self._say = say
        self._debug = debug
        self._first_losses: dict[str, float] = {}
        self._bad: list[Bad] = []
        self._notes: list[str] = []
        self._began = perf_counter()
        writer.write(header)

    def window(self, window: Window) -> None:
        """Append it. Raises OSError where the file takes no more."""
        self._writer.write(window)
        before = self.latest.get((window.model, window.phase))
        bad = any((one.model, one.step, one.phase) == (window.model, window.step, window.phase) for one in self._bad)
        if bad or window.complete or before is None or not before.complete:
            self.latest[window.model, window.phase] = window
        if window.loss is not None and window.complete:
            self._first_losses.setdefault(window.model, window.loss)

    def bad(self, bad: Bad) -> None:
        """Append it, and say it at once: the program may go on for hours."""
        self._bad.append(bad)
        self._say(bad_line(bad))
        self._writer.write(bad)

    def gave_up(self, error: Exception) -> None:
        """Say once that from now on nothing is looked at."""
        what = f"can't write {self.path}: {error.strerror}" if isinstance(error, OSError) else _described(error)
        self._failed = True
        self._notes.append(f"{what}; from then on nothing was looked at")
        self._say(f"warning: {what}; the program goes on, and is not looked at any more")
        if self._debug:
            import traceback

            self._say("".join(traceback.format_exception(error)).rstrip().replace("\n", "\n  "))

    def note(self, text: str) -> None:
        """Say something of the whole run, at its end; nothing where there is nothing to say."""
        self._notes += [text] if text else []

    def finish(
        self,
        exit_code: int,
        error: str | None,
        models: list[Ran],
        others: Mapping[str, int],
        *,
        steps: int = 0,
        keep: bool = True,
    ) -> End:
        """The last line. Unless it is to `keep` it all the same, a record that tells of no model is taken away."""
        seconds = perf_counter() - self._began
        ran = [asdict(model) for model in models]
        end = End(exit_code, error, seconds, ran, dict(others), tuple(self._notes), steps)
        failed = None
        try:
            self._writer.write(end)
        except OSError as problem:
            failed = problem
        self.kept = keep or bool(models) or self._failed or not self._writer.remove()
        if failed and self.kept:
            self._say(f"warning: can't write {self.path}: {failed.strerror}; the record has no end")
        self._writer.close()
        return end

    def summary(self, end: End, path: str, width: int | None, color: bool) -> str:
        """What came of it, for a screen."""
        where = path if self.kept else None
        return summary(self._header, end, self.latest, self._bad, where, width, color, self._first_losses)


def _described(error: Exception) -> str:
    return f"hookcli failed ({type(error).__name__}: {str(error).partition(chr(10))[0]}), which is a bug in hookcli"
