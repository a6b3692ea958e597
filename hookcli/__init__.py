"""hookcli: see what happens inside a PyTorch model.

`capture` runs a model under probes and returns reports; `watch` looks at a model while your own code runs it. Both are
imported on first use, so that `import hookcli` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookcli.engine import Watch, capture, watch

__all__ = ["Watch", "capture", "watch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from hookcli import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'hookcli' has no attribute {name!r}")
