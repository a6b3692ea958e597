"""The interface of what the inventory gathers call by call: rows of one or a few kinds."""

from __future__ import annotations

from hookcli.hooks.events import HookEvent
from hookcli.hooks.session import HookSession


class InventoryPart:
    """Sees each call of a module, and of an operator where operators are watched, as it begins and as it ends."""

    def __init__(self, session: HookSession) -> None:
        self.session = session

    def enter(self, event: HookEvent) -> None:
        """Take in what a module is called with."""

    def leave(self, event: HookEvent) -> None:
        """Take in what a module or operator returned."""

    def batch_ended(self) -> None:
        """Reduce what the batch has shown."""

    def rows(self) -> list[dict[str, object]]:
        """The rows, whose values are read back here."""
        raise NotImplementedError
