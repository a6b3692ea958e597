"""The base of the hook groups of a session."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import ClassVar

from hookcli.hooks.core import SessionCore
from hookcli.hooks.kinds import HookKind


class Needs(Enum):
    """Which calls a hook group must know of: the modules are hooked for it."""

    NONE = auto()
    WATCHED = auto()
    EVERY = auto()
    """Those of all modules, since it matters which one is running."""


class HookGroup:
    """Hooks that are registered in one way, each on the session's stack, so that they end with it."""

    kinds: ClassVar[Sequence[HookKind]]
    needs: ClassVar[Needs] = Needs.NONE

    def __init__(self, core: SessionCore) -> None:
        self.core = core

    def start(self, kind: HookKind) -> None:
        """Register the hooks of a kind, when a probe first asks for it and the modules that it `needs` are hooked."""
