"""What the tests of several capabilities share."""

from __future__ import annotations

from pathlib import Path

import pytest
from reporters.exports import killed_record


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a run that was killed, alone in the working directory."""
    monkeypatch.chdir(tmp_path)
    return killed_record(tmp_path)
