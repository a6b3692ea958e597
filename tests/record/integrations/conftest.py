"""Frameworks tell their processes of each other, and of precision, in the environment: it stays as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}):
        yield
