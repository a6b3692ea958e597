"""All columns that hookcli's own probes, checks and commands report, by name; and the column that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

from hookcli.errors import UsageError, class_name, unknown
from hookcli.registry.pieces import failures, left_out, pieces
from hookcli.table.column import TEXT_KINDS, Column, Kind, Shown
from hookcli.table.columns.comparison import COMPARISON
from hookcli.table.columns.costs import COSTS, MEMORY, TIMES
from hookcli.table.columns.listings import LISTINGS
from hookcli.table.columns.places import PLACES
from hookcli.table.columns.statistics import STATISTICS
from hookcli.table.columns.training import TRAINING

_CORE = (PLACES, STATISTICS, COSTS, MEMORY, TRAINING, COMPARISON, LISTINGS)
OF_CAPABILITIES: dict[str, Sequence[Column]] = {}
"""The columns that each capability declares."""
DECLARED: dict[str, Column] = {}
for _column in chain.from_iterable(_CORE):
    DECLARED.setdefault(_column.name, _column)
_owners = dict.fromkeys(DECLARED, "hookcli")
for _one, _columns in pieces("columns", (list, tuple)):
    with left_out(_one, f"columns={_one.columns!r}"):
        if _odd := [each for each in _columns if not isinstance(each, Column)]:
            raise TypeError(f"{class_name(_odd[0])} among its columns is not a Column")
        OF_CAPABILITIES[_one.name] = _columns
        for _column in _columns:  # no capability changes the columns of others
            _first = DECLARED.setdefault(_column.name, _column)
            _owner = _owners.setdefault(_column.name, str(_one))
            if _one.distribution != "hookcli" and _first != _column:
                _taken = f"is not used: {_owner} has one of this name"
                failures[f"{_one}: its column {_column.name!r}"] = _taken, ""
FAMILIES = (*_CORE, *OF_CAPABILITIES.values())
TEXTS = frozenset(name for name, column in DECLARED.items() if column.kind in TEXT_KINDS)
"""The columns whose values are texts."""
IDENTITY = tuple(column.name for column in DECLARED.values() if column.identity)
"""The columns that tell which place a row is of, by which rows of calls, batches, ranks and runs go together."""
_BY_UNIT = {
    "bytes": Kind.BYTES,
    "seconds": Kind.SECONDS,
    "microseconds": Kind.MICROSECONDS,
    **dict.fromkeys(("firings", "elements", "parameters", "times"), Kind.COUNT),
}


@lru_cache(maxsize=1 << 12)  # reports of many ranks and steps have the same columns
def declared(name: str, title: str | None = None, unit: str | None = None) -> Column:
    """The column of this name with what is known of it, under another title and unit if they are given.

    A name that hookcli does not know has the rules that its unit, or an ending in `_bytes` or `shape`, suggests.
    """
    column = DECLARED.get(name)
    if column is None or (unit == "firings" != column.unit and not column.identity):  # of a hook called "node"
        kind = Kind.SHAPE if name.endswith("shape") else Kind.BYTES if name.endswith("_bytes") else Kind.ANY
        shown = Shown.SET if unit == "firings" else Shown.FILLED
        heading = name.replace("_", " ").capitalize()
        column = Column(name, heading, None, _BY_UNIT.get(unit or "", kind), shown=shown)
    if title is None or (title, unit) == (column.title, column.unit):
        return column
    return replace(column, title=title, unit=unit)


def resolved(column: Column) -> Column:
    """The column with the rules that its name and unit suggest, in place of fields that it does not give.

    A name that hookcli declares has its rules, but for the order in which columns leave a narrow table. Raises
    ValueError for another column that says which place a row is of.
    """
    usual = declared(column.name, column.title, column.unit)
    if column is usual:
        return column
    if column.name in DECLARED:
        return usual if column.drop in (None, usual.drop) else replace(usual, drop=column.drop)
    if column.identity:
        raise ValueError(f"column {column.name!r}: only hookcli's own columns tell which place a row is of")
    if column == Column(column.name, column.title, column.unit):
        return usual
    return replace(column, kind=usual.kind) if column.kind == Kind.ANY != usual.kind else column


def columns_named(*names: str, **titles: str) -> tuple[Column, ...]:
    """The columns of these names, under other titles if any are given: `columns_named("fqn", "type", fqn="Name")`."""
    return tuple(declared(name, titles.get(name), declared(name).unit) for name in names)


def from_dict(data: Mapping[str, Any]) -> Column:
    """The column that a report saved. Raises KeyError or ValueError for a damaged one."""
    column = declared(data["name"], data["title"], data["unit"])
    rules = {} if column.name in DECLARED else Column.rules_from(data)
    return replace(column, **rules) if rules else column


def to_dict(column: Column) -> dict[str, Any]:
    """The column as a JSON object: rules only where the name and the unit do not suggest them already."""
    rules = {} if column.name in DECLARED else column.rules(declared(column.name, column.title, column.unit))
    return column.to_dict() | rules


def looks(names: Iterable[str], columns: Iterable[Column] = ()) -> dict[str, dict[str, Any]]:
    """How a page shows the columns of these names: as `columns` has them, under declared titles."""
    own = {column.name: replace(column, title=DECLARED.get(column.name, column).title) for column in columns}
    return {name: (own.get(name) or declared(name)).looks() for name in sorted(names, key=_in_order)}


_ORDER = {name: number for number, name in enumerate(DECLARED)}


def _in_order(name: str) -> tuple[int, str]:
    return _ORDER.get(name, len(_ORDER)), name


def names(columns: Iterable[Column]) -> tuple[str, ...]:
    """The names of columns."""
    return tuple(column.name for column in columns)


def place_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The place of a row: its values under IDENTITY."""
    return tuple(map(values.get, IDENTITY))


def find_column(option: str, typed: str, columns: Sequence[Column]) -> Column:
    """The column with this name, or this heading, in any case, with dashes for spaces.

    Raises UsageError if there is none, or several.
    """

    def plain(text: str) -> str:
        return " ".join(text.casefold().replace("-", " ").split())

    named = {column.name: column for column in columns}
    if typed in named:
        return named[typed]
    fitting = [c for c in named.values() if plain(typed) in (c.name.casefold(), plain(c.title))]
    if not fitting and typed in names(TIMES):
        raise UsageError(f"{option}: {typed} needs --time")
    if not fitting:
        titles = [column.title for column in named.values()]
        headings = [t for t in titles if t and titles.count(t) == 1 and t.casefold() not in named]
        raise UsageError(f"{option}: {unknown('column', typed, [*named], also=headings)}")
    if len(fitting) > 1:
        raise UsageError(f"{option}: several columns are headed {typed!r}; choose from: {', '.join(names(fitting))}")
    return fitting[0]
