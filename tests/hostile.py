"""Names that are not meant well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]
