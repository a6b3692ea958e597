"""Looks up the row of a layer, parameter or operator by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookcli.errors import UnknownRowError, nearest
from hookcli.table.columns import IDENTITY
from hookcli.table.names import is_within
from hookcli.table.row import Row

_MODEL = "(model)"  # how tables write the name of the model itself
_KEYS = (*IDENTITY, "rank")


def row_of(rows: Sequence[Row], fqn: str, wanted: Mapping[str, Any], missing: Mapping[str, str]) -> Row:
    """The one row of this name that has the `wanted` values; "" or "(model)" is the model itself.

    Raises UnknownRowError. If there is none, the message has the reason why it is `missing`, or the nearest names; if
    there are several, the values that tell them apart.
    """
    named = [row for row in rows if row.fqn == ("" if fqn == _MODEL else fqn)]
    if not named:
        absent = f"{fqn!r} was not measured: {missing[fqn]}" if fqn in missing else _no_row(rows, fqn)
        raise UnknownRowError(absent)
    fitting = [row for row in named if all(row.get(key) == value for key, value in wanted.items())]
    if len(fitting) == 1:
        return fitting[0]
    asked = " with " + ", ".join(f"{key}={value!r}" for key, value in wanted.items()) if wanted else ""
    number = f"{len(fitting)} rows" if fitting else "no row"
    raise UnknownRowError(f"{number} of {fqn!r}{asked}; {_choice(fitting or named, fqn)}")


def _no_row(rows: Sequence[Row], fqn: str) -> str:
    names = [*dict.fromkeys(row.fqn for row in rows if row.fqn)]
    near = [name for name in names if name.endswith((f".{fqn}", f":{fqn}")) or is_within(name, fqn)] if fqn else []
    near = near[:3] or nearest(fqn, names)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(names[:3]) or 'none'}"
    return f"no row of {fqn!r}; {hint}"


def _choice(rows: Sequence[Row], fqn: str) -> str:
    """choose one, as in report.row('relu', call=0); there are call=0 | call=1"""
    keys = [key for key in _KEYS if len({repr(row.get(key)) for row in rows}) > 1]
    keys = keys or [key for key in _KEYS[1:] if rows[0].get(key) is not None]
    choices = [*dict.fromkeys(", ".join(f"{key}={row.get(key)!r}" for key in keys) for row in rows)]
    if not keys:  # events, such as those of `trace`
        return f"all of them: [row for row in report.rows if row.fqn == {fqn!r}]"
    return f"choose one, as in report.row({fqn!r}, {choices[0]}); there are {' | '.join(choices[:6])}"
