"""hookcli: see what happens inside a PyTorch model.

`capture` runs a model under probes and returns reports; `watch` looks at a model while your own code runs it; `check`
judges a model. They are imported on first use, so that `import hookcli` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookcli.checking import check
    from hookcli.engine import Watch, capture, watch

__all__ = ["Watch", "capture", "check", "watch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("hookcli.checking" if name == "check" else "hookcli.engine"), name)
    raise AttributeError(f"module 'hookcli' has no attribute {name!r}")
