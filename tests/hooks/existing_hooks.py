"""Hooks that a model has already."""

from __future__ import annotations

from typing import Any

from torch import nn


def plain(*_: Any) -> None: ...


def public(*_: Any) -> None: ...


class Caller:
    def __call__(self, *_: Any) -> None: ...


class Teacher(nn.Module):
    def forward(self, *_: Any) -> None: ...

    def watch(self, *_: Any) -> None: ...
