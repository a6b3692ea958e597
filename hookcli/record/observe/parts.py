"""Guards the parts of the observation: one that fails is left out from then on, by name, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hookcli.errors import in_brief
from hookcli.hooks.events import Callback, HookEvent
from hookcli.hooks.origin import raised_by_signal_handler

T = TypeVar("T")


class Parts:
    """Knows which parts of the observation of which models have failed. `tell` gets the model, a line, and the error.

    A part is named as the user knows it: by its probe ("updates"), or by what it finds ("blame").
    """

    def __init__(self, tell: Callable[[str, str, Exception], None]) -> None:
        self._tell = tell
        self._off: set[tuple[str, str]] = set()

    def works(self, model: str, part: str) -> bool:
        return (model, part) not in self._off

    def run(self, model: str, part: str, do: Callable[[], T], otherwise: T) -> T:
        """What `do` returns; `otherwise` if the part fails now, or has failed before."""
        if not self.works(model, part):
            return otherwise
        try:
            return do()
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            self._off.add((model, part))
            why = f"hookcli failed ({in_brief(error)}), which is a bug in hookcli"
            self._tell(model, f"{part}: left out from here on, since {why}; the rest is recorded", error)
            return otherwise

    def guarded(self, model: str, part: str, callback: Callback) -> Callback:
        """Wrap a callback of a session."""

        def call(event: HookEvent) -> None:
            self.run(model, part, lambda: callback(event), None)

        return call
