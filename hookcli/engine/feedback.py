"""Tells people what a run is doing."""

from __future__ import annotations

from typing import Protocol


class Feedback(Protocol):
    """Hears of the stages of a run and of remarks on it."""

    def stage(self, text: str) -> None:
        """Called when a stage begins: "running resnet50 on cpu"."""

    def remark(self, text: str) -> None:
        """Called with what a person should know of the run."""


class _Silent:
    def stage(self, text: str) -> None:
        pass

    def remark(self, text: str) -> None:
        pass


SILENT: Feedback = _Silent()
"""Tells nobody."""
