"""Strict JSON knows no NaN and no infinity: `strict` writes them as strings, `relaxed` reads them back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def strict(value: Any) -> Any:
    """The value with non-finite floats as the strings that strict JSON allows."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (str, float, int, NoneType)):  # most are, and to ask an abstract class takes long
        return value
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value


def relaxed(value: Any) -> Any:
    """The inverse of `strict`."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, (float, int, NoneType)):  # most are, and to ask an abstract class takes long
        return value
    if isinstance(value, Mapping):
        return {key: relaxed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [relaxed(item) for item in value]
    return value
