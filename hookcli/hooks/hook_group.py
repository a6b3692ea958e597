"""What the families of hooks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from hookcli.hooks.kinds import HookKind

if TYPE_CHECKING:
    from hookcli.hooks.session import HookSession


class Family(ABC):
    """Hooks that are registered in one way, each on the session's stack, so that they end with it."""

    kinds: ClassVar[Sequence[HookKind]]

    def __init__(self, session: HookSession) -> None:
        self.session = session

    @abstractmethod
    def want(self, kind: HookKind) -> None:
        """Register what a kind needs, if it is not registered yet."""
