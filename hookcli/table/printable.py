"""Reports whose texts are safe to print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from hookcli.system.escaping import visible, visible_lines
from hookcli.table import Column, Report, TensorStats
from hookcli.table.columns import DECLARED

T = TypeVar("T")


def printable(report: Report, *, lines: bool = False) -> Report:
    """The report with every text made safe to show, since names come from other people's models and files.

    `lines`: keep line breaks, for formats that can show them.
    """
    return _made_visible(report, visible_lines if lines else visible)


def _made_visible(value: T, shown: Callable[[str], str]) -> T:
    visible: Any = value
    if value is None or isinstance(value, (float, int, Enum, TensorStats)):  # most are, and dataclasses take long
        pass
    elif isinstance(value, str):
        visible = shown(value)
    elif isinstance(value, Mapping):
        visible = {_made_visible(key, shown): _made_visible(item, shown) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        visible = [_made_visible(item, shown) for item in value]
    elif isinstance(value, Column):
        if value is not DECLARED.get(value.name):
            texts: dict[str, Any] = {
                name: shown(getattr(value, name)) for name in ("name", "title", "full", "total", "explanation")
            }
            visible = replace(value, **texts, unit=value.unit and shown(value.unit))
    elif is_dataclass(value) and not isinstance(value, type):
        whole = {item.name: _made_visible(getattr(value, item.name), shown) for item in fields(value)}
        visible = replace(value, **whole)
    return visible  # type: ignore[no-any-return]
