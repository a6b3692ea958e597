"""Being told that something is over which an exception has ended: no hook of PyTorch's is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Afterwards:
    """Does something when it is let go of. PyTorch keeps what hooks return in the frame of the call or the step; of one
    that failed that lives as long as the exception does."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def __del__(self) -> None:
        self._do()


class Holding(dict[str, Any]):
    """Keyword arguments, and something that lives as long as they do."""

    def __init__(self, kwargs: dict[str, Any], afterwards: Afterwards) -> None:
        super().__init__(kwargs)
        self.afterwards = afterwards
