"""The checks of causes: why a training leaves weights as they are, which `hookcli run` tells also without `--check`."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli.checks.base import Check
from hookcli.checks.training import NotInOptimizer, StillWeights
from hookcli.checks.unused import NoGradient
from hookcli.checks.zero_gradients import ZeroGradient

CAUSES: Sequence[Check] = (NoGradient(), ZeroGradient(), NotInOptimizer(), StillWeights())
