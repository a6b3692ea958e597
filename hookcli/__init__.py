"""hookcli: see what happens inside a PyTorch model.

`capture` runs a model under probes and returns reports; `watch` looks at a model while your own code runs it; `check`
judges a model. They are imported on first use, so that `import hookcli` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookcli.engine.capture import Watch, capture
    from hookcli.engine.checking import check
    from hookcli.record.watch import watch

__all__ = ["Watch", "capture", "check", "watch"]

_HOMES = {"Watch": "engine.capture", "capture": "engine.capture", "check": "engine.checking", "watch": "record.watch"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"hookcli.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hookcli' has no attribute {name!r}")
