"""The search language of pages, as `html/assets/table_state.js` has it: words, and comparisons such as macs>1M."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any

from hookcli.capabilities.explore.places import Joined, Place
from hookcli.table import Column, Kind, formatting

Test = Callable[[Place], bool]
_TERM = re.compile(r'"([^"]*)"|(\S+)')
_COMPARISON = re.compile(r"([A-Za-z0-9_.%]+)(<=|>=|!=|=|<|>)(.*)")
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z%]*)", re.ASCII)
_UNITS = {"": 1, "%": 0.01} | {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}i{end}": 1024**power for power, letter in enumerate("kmgt", 1) for end in ("", "b")}
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {"<": operator.lt, ">": operator.gt, "<=": operator.le}
_COMPARE |= {">=": operator.ge, "=": lambda a, b: a == b or (a != a and b != b)}
_COMPARE |= {"!=": lambda a, b: not _COMPARE["="](a, b)}


def search(joined: Joined, text: str) -> Test | None:
    """The test of a place that a search asks for; None for an empty one. All terms hold; "-" leaves out."""
    tests = [_term(word, joined) if word else _word(quoted, joined) for quoted, word in _TERM.findall(text)]
    return (lambda place: all(test(place) for test in tests)) if tests else None


def _term(term: str, joined: Joined) -> Test:
    match, without = _COMPARISON.fullmatch(term), _word(term[1:], joined)
    named = _named(match[1].lower(), joined) if match and match[3] else None
    if match is None or named is None:
        return (lambda place: not without(place)) if term[:1] == "-" != term and not match else _word(term, joined)
    (head, column, numeric), typed = named, match[3].lower()
    number, compare, equal = _NUMBER.fullmatch(typed), _COMPARE[match[2]], match[2] == "="
    limit = _SPECIAL.get(typed, float(number[1]) * _UNITS[number[2]] if number and number[2] in _UNITS else None)

    def test(place: Place) -> bool:
        value = _value(place, head, column)
        if typed == "-":
            return (value is None) == equal
        if numeric and limit is not None:
            return value is not None and compare(value, limit)
        return compare(formatting.cell(place.rows[head], column).lower() if head in place.rows else "", typed)

    return test


def _word(word: str, joined: Joined) -> Test:
    def test(place: Place) -> bool:
        if not place.words:
            cells = ((place.rows[head], column) for head, column, _ in _columns(joined) if head in place.rows)
            texts = [formatting.cell(row, c) for row, c in cells if type(row.get(c.name)) not in (int, float, NoneType)]
            place.words = "\n".join([place.fqn, *texts]).lower()
        return word.lower() in place.words

    return test


def _columns(joined: Joined) -> Iterator[tuple[str, Column, str]]:
    """The head, the column and the name of what a page's table of modules shows."""
    for head, columns in joined.columns.items():
        for column in columns.values() if head in joined.searched else ():
            idle = column.identity or not column.charted or column.kind in (Kind.TEXT, Kind.SOURCE)
            own = not head and column.name in ("fqn", "type", "calls", "source")
            if own or not (idle or (head and column.kind == Kind.SHAPE)):
                yield head, column, f"{head}.{column.name}".strip(".").lower()


def _named(name: str, joined: Joined) -> tuple[str, Column, bool] | None:
    """The head and the column of a name, and whether it holds numbers alone."""
    exact = lambda key, column: name in (key, column.title.lower().replace(" ", "_"))  # noqa: E731
    for fits in (exact, lambda key, column: key.endswith(f".{name}")):
        for head, column, key in _columns(joined):
            values = [_value(place, head, column) for place in joined.places.values() if fits(key, column)]
            if known := [value for value in values if value is not None]:
                return head, column, all(type(value) in (int, float) for value in known)
    return None


def _value(place: Place, head: str, column: Column) -> Any:
    """The value to compare: for a count of elements, its share of all."""
    row = place.rows.get(head)
    value = row.get(column.name) if row else None
    return value / row["numel"] if row and value and column.kind == Kind.ELEMENTS and row.get("numel") else value
