"""The base class of a session's hook groups."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import ClassVar

from hookcli.hooks.kinds import HookKind
from hookcli.hooks.session_core import SessionCore


class Needs(Enum):
    """The calls of modules that a hook group must know; the modules are hooked for it."""

    NOTHING = auto()
    WATCHED_CALLS = auto()
    EVERY_CALL = auto()
    """Including calls of unwatched modules, since it matters which module is running."""


class HookGroup:
    """Hooks that are registered in one way, each on the session's stack, so that they end with the session."""

    kinds: ClassVar[Sequence[HookKind]]
    needs: ClassVar[Needs] = Needs.NOTHING

    def __init__(self, core: SessionCore) -> None:
        self.core = core

    def release(self) -> None:
        """Forget the model's parts, as the session forgets the model."""

    def start(self, kind: HookKind) -> None:
        """Register the hooks of a kind that a probe asks for; the calls that the group needs are hooked already."""
