"""Tells people what a run is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Feedback:
    """`stage` is called when a stage of a run begins ("running resnet50 on cpu"), `remark` with what people should know
    of the run. By default nobody hears of either."""

    stage: Callable[[str], object] = len
    remark: Callable[[str], object] = len
