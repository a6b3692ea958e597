"""Two sides of one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]


INPUT = ("--input", "2x3x4x4")


NET = "net.py:Net"


# Saved reports.


def save(cli: Cli, file: str, *argv: str, command: str = "activations") -> None:
    assert cli(command, *argv, *INPUT, "-o", file, "-q").code == 0
