"""What a module is called with by keyword, where a hook is not told: PyTorch's global pre-hooks get no keywords."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch import nn

_FAR = 12  # frames from a hook to the call that it is a hook of


def keywords(module: nn.Module) -> dict[str, Any]:
    """The keyword arguments of the call of this module that is about to begin, or is just over; for use in its hook.

    Read off the frame of PyTorch's that calls the hooks. It is the very dict that goes to `forward`, so what a pre-hook
    puts there is what the module gets. Empty where there is no such frame.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FAR):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == "torch.nn.modules.module" and "kwargs" in frame.f_code.co_freevars:
            found = frame.f_locals
            return found["kwargs"] if found.get("self") is module and type(found["kwargs"]) is dict else {}
        frame = frame.f_back
    return {}
