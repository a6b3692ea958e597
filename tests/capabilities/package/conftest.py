"""The fixtures of the tests of packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from capabilities.package.packages import MINE, PARTS, Cli, forget


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's own model, as the working directory."""
    (tmp_path / "pk_mine.py").write_text(MINE)
    (tmp_path / "pk_parts").mkdir()
    (tmp_path / "pk_parts" / "__init__.py").write_text("from .act import Act\n")
    (tmp_path / "pk_parts" / "act.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield tmp_path
    forget()


@pytest.fixture
def cli(cli: Cli) -> Cli:
    """Each command line finds the user's modules unloaded, as in a process of its own."""

    def run(*argv: str) -> Any:
        forget()
        return cli(*argv)

    return run
