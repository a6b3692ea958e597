"""Two sides of one model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]


INPUT = ("--input", "2x3x4x4")


NET = "net.py:Net"


# Saved reports.


def save(cli: Cli, file: str, *argv: str, command: str = "activations") -> None:
    assert cli(command, *argv, *INPUT, "-o", file, "-q").code == 0


# Dumps.


def dumped(cli: Cli, folder: str, *argv: str, command: str = "activations") -> None:
    """Dump the tensors of a command."""
    assert cli(command, *(argv or (NET,)), *INPUT, "--dump", folder, "-q").code == 0


def index(folder: str) -> dict[str, Any]:
    """The index of a dump."""
    return dict(json.loads(Path(folder, "index.json").read_text()))
