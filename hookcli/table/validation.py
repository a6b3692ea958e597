"""Tests for the values of a report, by key: a damaged file must not reach what reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hookcli.registry.capability import capabilities
from hookcli.table.column import Column, Kind
from hookcli.table.columns import DECLARED
from hookcli.table.columns.costs import COSTS, MEMORY
from hookcli.table.columns.recorded import GROUPS, WITHOUT_GAPS
from hookcli.table.columns.training import TRAINING
from hookcli.table.histogram import is_histogram
from hookcli.table.meta import Meta
from hookcli.table.report import Finding
from hookcli.table.stats import STATS_KEYS

_GREATEST = 2**63
_SHOWN = 40  # characters of a value in a message
_DEEPEST = 4  # lists within lists

Fits = Callable[[Any], bool]


def require(values: Mapping[str, Any], fits: Mapping[str, Fits], otherwise: Fits | None = None) -> None:
    """Raises ValueError for a value that does not fit its key; keys that are not in `fits` must fit `otherwise`, if
    given.
    """
    for key, value in values.items():
        fit = fits.get(key, otherwise)
        if fit is not None and not fit(value):
            raise ValueError(f"{key} can't be {str(value)[:_SHOWN]!r}")


def is_text(value: Any) -> bool:
    """Text."""
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    """True for a whole number from 0 that fits into 64 bits."""
    return type(value) is int and 0 <= value < _GREATEST


def is_figure(value: Any) -> bool:
    """A number."""
    return isinstance(value, float) or (type(value) is int and abs(value) < _GREATEST)


def is_mapping(value: Any) -> bool:
    """True for a JSON object."""
    return isinstance(value, Mapping)


def is_plain(value: Any, depth: int = 0) -> bool:
    """True for None, a flag, text, a number, or a list of these."""
    if isinstance(value, list):
        return depth < _DEEPEST and all(is_plain(item, depth + 1) for item in value)
    return value is None or isinstance(value, (bool, str)) or is_figure(value)


def optional(fits: Fits) -> Fits:
    """A condition that None meets, too."""
    return lambda value: value is None or fits(value)


def listed(fits: Fits) -> Fits:
    """A condition for a list whose items all meet the given one."""
    return lambda value: isinstance(value, (list, tuple)) and all(map(fits, value))


def mapped(fits: Fits) -> Fits:
    """A condition for a JSON object whose values all meet the given one."""
    return lambda value: is_mapping(value) and all(map(fits, value.values()))


def having(keys: Mapping[str, Fits]) -> Fits:
    """A condition for a JSON object that has these keys, whose values meet theirs."""
    return lambda value: is_mapping(value) and all(key in value and fits(value[key]) for key, fits in keys.items())


def _is_number(value: Any) -> bool:
    """True for a number that is neither NaN nor infinite, and fits into 64 bits."""
    return type(value) in (int, float) and abs(value) < _GREATEST


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < _GREATEST


def _is_shape(value: Any) -> bool:
    """True for one shape or several."""
    return isinstance(value, list) and (all(map(_is_integer, value)) or all(map(_is_shape, value)))


_OF_HOOKS = having(
    dict.fromkeys(("buckets", "step", "bytes_before"), is_count)
    | {"bytes_after": optional(is_count)}
    | dict.fromkeys(("relative_l2", "cosine"), optional(is_figure))
)
"""The totals of a communication hook over a step."""


GROUPINGS = ("nested", "disjoint", "events", "steps", "list", "moments")
OF_GROUPING: Mapping[str, Sequence[str]] = {"steps": ("step", "fqns")}
COMPLETE = (
    *("shapes", "timeline"),
    *(name for one in capabilities() if one.complete for name in (one.name, *one.reports)),
)
"""Probes whose rows have all columns."""
NEEDED = {
    "updates": ("weight", "update"),
    **dict.fromkeys(("grads", "activations", "inputs", "parameters"), STATS_KEYS),
}
REPORT: Mapping[str, Fits] = {
    **dict.fromkeys(("probe", "model"), is_text),
    "grouping": GROUPINGS.__contains__,
    **dict.fromkeys(("meta", "totals"), is_mapping),
}
SKIPPED: Mapping[str, Fits] = dict.fromkeys(("fqn", "reason", "path"), is_text)
_KINDS: Mapping[Kind, Fits] = {
    Kind.ANY: is_plain,
    **dict.fromkeys((Kind.TEXT, Kind.SOURCE), is_text),
    Kind.NAMES: listed(is_text),
    Kind.FLAG: lambda value: isinstance(value, bool),
    **dict.fromkeys((Kind.COUNT, Kind.QUANTITY, Kind.ELEMENTS, Kind.FAULTS, Kind.BYTES), is_count),
    Kind.BYTES_CHANGE: _is_integer,
    **dict.fromkeys((Kind.FIGURE, Kind.COSINE, Kind.LOSS, Kind.JUDGED, Kind.SHARE), is_figure),
    **dict.fromkeys((Kind.SECONDS, Kind.MICROSECONDS, Kind.SETTING), is_figure),
    Kind.SETTINGS: listed(is_figure),
    Kind.SHAPE: _is_shape,
    Kind.SHAPES: listed(_is_shape),
    Kind.NUMBERS: listed(optional(is_count)),
    Kind.MAPPING: is_mapping,
    Kind.HISTOGRAM: is_histogram,
}


def fits(column: Column) -> Fits:
    """The test that a value of this column must pass."""
    return _KINDS[column.kind] if column.required else optional(_KINDS[column.kind])


ROW: Mapping[str, Fits] = {name: fits(column) for name, column in DECLARED.items()} | {
    "sharded": lambda value: value is True or optional(listed(is_count))(value),
    "mesh": optional(listed(is_count)),
}
"""Tests for the values of a row under the keys that hookcli knows."""


def value_type(column: Column) -> type | None:
    """The type of a column's values: text, float or int; None if it has no single one."""
    fit = _KINDS[column.kind]
    return next((type(value) for value in ("", 0.5, 0) if fit(value)), None) if column.kind != Kind.ANY else None


def _of_type(hint: object) -> Fits:
    """The test of a value that its type asks for."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return is_plain
    if kind is Literal:
        return lambda value: value in arguments
    if kind in (Sequence, tuple):
        return listed(_of_type(arguments[0]))
    if kind in (Union, UnionType):
        tests = [*map(_of_type, arguments)]
        return lambda value: any(fit(value) for fit in tests)
    if isinstance(hint, type) and issubclass(hint, (StrEnum, bool)):
        return lambda value: isinstance(value, hint)
    return {str: is_text, int: is_count, float: is_figure, NoneType: lambda value: value is None}.get(hint, is_mapping)


COLUMN: Mapping[str, Fits] = {
    **{name: _of_type(hint) for name, hint in get_type_hints(Column).items() if name != "moves"},
    **dict.fromkeys(("tolerance", "drop"), optional(_is_number)),
    "usual": lambda value: value is None or isinstance(value, (bool, str)) or _is_number(value),
}
FINDING: Mapping[str, Fits] = {name: _of_type(hint) for name, hint in get_type_hints(Finding).items()}
META: Mapping[str, Fits] = {
    **{name: _of_type(hint) for name, hint in get_type_hints(Meta, include_extras=True).items()},
    "against": lambda value: is_text(value) or mapped(is_text)(value),
    "found_at": mapped(is_count),
    **dict.fromkeys(("replicas", "smooth"), lambda value: is_count(value) and value > 0),  # another word
}
"""The tests of what `meta` holds: tests of types, and of what a type does not say."""
HEADLINES = ("verdict", "settings", "parting", "apart", "first")
"""Totals that are printed before all else: the verdict, its cause, how far apart runs are, and where that begins."""
SENTENCES = (*HEADLINES, "held", "phases", "checkpointing", "structure", "grew", "weights", "times")  # another word
"""Totals that are printed on separate lines."""
OF_PEAK = (
    "peak_phase",
    "peak_fqn",
    "peak_operator",
    "largest_batch",
    "limit_bytes",
    "reserve_bytes",
    "recomputed_macs",
)
"""Totals that sentences say."""
TOTALS: Mapping[str, Fits] = {
    **{column.name: fits(column) for column in (*COSTS, *MEMORY, *TRAINING)},
    **{column.name: _KINDS[column.kind] for column in WITHOUT_GAPS},
    "groups": listed(lambda group: is_mapping(group) and all(ROW[c.name](group[c.name]) for c in GROUPS)),
    **dict.fromkeys((*SENTENCES, "order", "kept_mode", "nothing"), is_text),
    **dict.fromkeys(OF_PEAK, lambda value: value is None or is_text(value) or is_count(value)),
    "dtypes": mapped(having({"bytes": is_count})),
    "hooks": lambda value: mapped(_OF_HOOKS)(value) or is_figure(value),
    **dict.fromkeys(("forward_us", "backward_us"), is_figure),
    **dict.fromkeys(("errors", "warnings", "checks", "modules"), is_count),
    "kept_bytes": is_count,
}
