"""Two models run side by side, and their tensors compared as they come by."""

from hookcli.engine.lockstep.compare import Side, compare

__all__ = ["Side", "compare"]
