"""What commands of figures print, as rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]


SMALL = ("--input", "2x3x64x64", "--quiet")


def rows(text: str) -> list[dict[str, Any]]:
    return json.loads(text)["reports"][0]["rows"]


def meta(text: str) -> dict[str, Any]:
    return json.loads(text)["reports"][0]["meta"]
