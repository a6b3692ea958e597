"""Two models run side by side, and their tensors compared as they come by."""

from hookcli.compare.run import Side, compare

__all__ = ["Side", "compare"]
