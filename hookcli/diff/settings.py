"""The settings of a module that differ between two models: a stride, an epsilon, a probability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookcli.table.formatting import counted

_ABSENT = "nothing"
_NAMED = 3


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The settings that differ in words, `eps 1e-05 → 0.01, momentum 0.1 → 0.2`; "" if there are none."""
    changed = [name for name in {**old, **new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
    return ", ".join(f"{name} {_text(old.get(name, _ABSENT))} → {_text(new.get(name, _ABSENT))}" for name in changed)


def settings_line(settings: Mapping[str, str]) -> str:
    """The changed settings, given by module, in one line with the first modules' own; "" if there are none."""
    named = [f"{fqn or '(model)'} {said}" for fqn, said in settings.items()]
    more = f"; and {counted(len(named) - _NAMED, 'more module')}" if named[_NAMED:] else ""
    return f"settings differ: {'; '.join(named[:_NAMED])}{more}" if named else ""


def _text(value: Any) -> str:
    """A value as Python writes it; equal numbers are written once."""
    if isinstance(value, (list, tuple)) and value:
        same = len({str(item) for item in value}) == 1 and not isinstance(value[0], (list, tuple))
        return _text(value[0]) if same else "x".join(map(_text, value))
    return str(value)
