"""The checks of causes: why a training leaves weights as they are, which `hookcli run` tells also without `--check`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hookcli.checks.base import ERROR, Check
from hookcli.checks.training import NotInOptimizer, StillWeights
from hookcli.checks.unused import NeverRan, NoGradient
from hookcli.checks.zero_gradients import ZeroGradient
from hookcli.table import Finding

CAUSES: Sequence[Check] = (NeverRan(), NoGradient(), ZeroGradient(), NotInOptimizer(), StillWeights())


def first_causes(findings: Iterable[Finding]) -> list[Finding]:
    """The errors of these checks that follow from nothing else: a module that never ran needs no gradient."""
    ids = {check.id for check in CAUSES}
    return [one for one in findings if one.check in ids and one.fails(ERROR) and not one.cause]
