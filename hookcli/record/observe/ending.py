"""Ends the program where a part of a capability asks for it."""

from __future__ import annotations

import threading


class StopProgram(SystemExit):
    """Ends the program, as a part has asked; passes through its `finally`."""


class Ending:
    """Remembers that a part has asked to end the program; only the main thread can."""

    def __init__(self) -> None:
        self.asked = self._due = False

    def ask(self) -> None:
        """Have `stop_if_asked` end the program."""
        self.asked = self._due = True

    def stop_if_asked(self) -> None:
        """Raise StopProgram, once for what was asked, in the main thread."""
        if self._due and threading.current_thread() is threading.main_thread():
            self._due = False
            raise StopProgram(1)
