"""Runs two models side by side and compares their tensors."""

from hookcli.engine.lockstep.compare import compare
from hookcli.engine.lockstep.side import Side

__all__ = ["Side", "compare"]
