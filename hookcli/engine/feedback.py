"""Tells people what a run is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Feedback:
    """`stage` is called when a stage of a run begins ("running resnet50 on cpu"), `remark` with what people should know
    of the run, and `follow`, when a model is about to run, with a function that says how far it is: any thread may ask
    it while the stage lasts. By default nobody hears of any."""

    stage: Callable[[str], object] = len
    remark: Callable[[str], object] = len
    follow: Callable[[Callable[[], str]], object] = callable
