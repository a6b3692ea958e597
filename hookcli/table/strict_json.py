"""Strict JSON knows no NaN and no infinity: `strict` writes them as strings, `relaxed` reads them back.

`document_text` writes a document with a row per line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping
from types import NoneType
from typing import Any

from hookcli.system.escaping import visible_json

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


def relaxed(value: Any, texts: Container[str] = ()) -> Any:
    """The inverse of `strict`, but for what has a key in `texts`: a layer may be named "NaN"."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, (float, int, NoneType)):  # most are, and to ask an abstract class takes long
        return value
    if isinstance(value, Mapping):
        return {key: item if key in texts else relaxed(item, texts) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [relaxed(item, texts) for item in value]
    return value


def document_text(document: Mapping[str, Any]) -> str:
    """The text of a strict JSON document: a row per line, easy to grep and diff."""
    return visible_json(_lines(document, 0)) + "\n"


def _lines(value: Any, level: int) -> str:
    """Write nested containers over several lines, flat ones on one line."""
    pad = "  " * (level + 1)
    items = value.values() if isinstance(value, dict) else value
    deep = isinstance(value, (dict, list)) and any(isinstance(i, (dict, list)) for i in items) and level < 3
    if not deep:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    if isinstance(value, dict):
        inner = [f"{pad}{json.dumps(str(k), ensure_ascii=False)}: {_lines(v, level + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner) + "\n" + "  " * level + "}"
    inner = [pad + _lines(item, level + 1) for item in value]
    return "[\n" + ",\n".join(inner) + "\n" + "  " * level + "]"
