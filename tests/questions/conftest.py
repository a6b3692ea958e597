"""Asks questions in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from questions.asking import Asker, settled


@pytest.fixture
def ask(tmp_path: Path) -> Asker:
    return settled(tmp_path)
