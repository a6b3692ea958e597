"""Reads the lines of a file, and makes lines of a record of them: it may be damaged, or made by others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from hookcli.errors import PluginError, UsageError, class_name
from hookcli.record.file.record_lines import (
    RUN_SCHEMA,
    End,
    Header,
    Line,
    ModelRun,
    ModelSettings,
    NonFinite,
    PartLine,
    RecordedStep,
    StepEntry,
    StepLosses,
)
from hookcli.registry.capability import Capability, capabilities, load_text
from hookcli.registry.pieces import left_out
from hookcli.system.files import LARGEST, too_large
from hookcli.table import Report, relaxed
from hookcli.table.compilation import PARTS, Compilation
from hookcli.table.files import sound
from hookcli.table.validation import Fits, is_count, is_figure, is_mapping, is_text, listed, optional, require


def whole_lines(file: BinaryIO, last: bool = False) -> Iterator[tuple[int, bytes]]:
    """The lines from the current position on, each with its offset.

    An incomplete last line, which may still be written, is returned only with `last`; else the file is put back before
    it.
    """
    offset = file.tell()
    for text in iter(partial(whole_line, file), b""):
        if not (last or text.endswith(b"\n")):
            file.seek(offset)
            return
        yield offset, text
        offset += len(text)


def whole_line(file: BinaryIO) -> bytes:
    """The next line. Raises OSError for one without an end, as a file of zeros has."""
    text = file.readline(LARGEST)
    if len(text) == LARGEST:
        raise too_large(LARGEST)
    return text


def _has_fields(value: Any, kind: type) -> bool:
    """True if a mapping has the fields of a dataclass, but perhaps for those with a default."""
    needed = {one.name for one in fields(kind) if one.default is one.default_factory is MISSING}
    if not (is_mapping(value) and needed <= value.keys()):
        return False
    return all(fit(value[name]) for name, fit in FITS[kind].items() if name in value)


_FINITE: Fits = lambda value: is_figure(value) and math.isfinite(value)  # noqa: E731
_PLAIN: Mapping[str, Fits] = {
    "str": is_text,
    "Sequence[str]": listed(is_text),
    "int": is_count,
    "int | None": optional(is_count),
    "float": _FINITE,
    "float | None": optional(_FINITE),
    "Sequence[int]": listed(is_count),
    "Sequence[float]": listed(is_figure),
    "Sequence[float | None]": listed(optional(is_figure)),
    "bool": lambda value: isinstance(value, bool),
    "str | None": optional(is_text),
    "Mapping[str, str]": lambda value: is_mapping(value) and all(map(is_text, value.values())),
    "Mapping[str, int]": lambda value: is_mapping(value) and all(map(is_count, value.values())),
    "Mapping[str, float]": lambda value: is_mapping(value) and all(map(_FINITE, value.values())),
    "Sequence[Report]": listed(lambda value: isinstance(value, Report)),
}
"""A test for the value of a field, by the field's type."""
_LATER = {"left_out", "recorded_forwards"}
_BY_TYPE: Mapping[str, Fits] = {
    **_PLAIN,
    "Sequence[Mapping[str, Any]]": listed(  # fields of a `ModelRun`, but for those that earlier records lack
        lambda value: _has_fields(value, ModelRun) and FITS[ModelRun].keys() - _LATER <= value.keys()
    ),
    "Mapping[str, Any]": lambda value: value == {} or _has_fields(value, Compilation),
    **{f"Sequence[{kind.__name__}]": listed(partial(_has_fields, kind=kind)) for kind in PARTS},
}
"""With these, of lines of the core."""
_CORE: Sequence[type[Line]] = (Header, RecordedStep, NonFinite, StepLosses, ModelSettings, End)


def kinds_of_lines(declared: Iterable[Capability]) -> list[type[PartLine]]:
    """The kinds of lines that parts of these capabilities write.

    Those of another distribution are left out if one of them does not load, or is one that a record can't hold.
    """
    by_name: dict[str, str] = {kind.kind: "hookcli" for kind in _CORE}
    kinds: list[type[PartLine]] = []
    for one in declared:
        with left_out(one, f"lines={one.lines!r}"):
            own: dict[str, type[PartLine]] = {}
            for kind in load_text(one.lines) if one.lines else ():
                if not (isinstance(kind, type) and issubclass(kind, PartLine) and is_dataclass(kind)):
                    name = kind.__name__ if isinstance(kind, type) else class_name(kind)
                    raise PluginError(f"{name}, among its lines, is not a dataclass derived from PartLine")
                if owner := (by_name | dict.fromkeys(own, str(one))).get(kind.kind):
                    raise PluginError(f"the kind of lines {kind.kind!r} of {kind.__name__} is taken by {owner}")
                if wrong := [item for item in fields(kind) if _type_of(item) not in _PLAIN]:
                    problem = f"a record can't hold {wrong[0].name!r} of {kind.__name__}"
                    types = f"whose type is {_type_of(wrong[0])}; allowed types: {', '.join(_PLAIN)}"
                    raise PluginError(f"{problem}, {types}")
                own[kind.kind] = kind
            by_name |= dict.fromkeys(own, str(one))
            kinds += own.values()
    return kinds


def _type_of(item: Field[Any]) -> str:
    """A field's type as it is written, with or without `from __future__ import annotations`."""
    text = item.type.__name__ if isinstance(item.type, type) else str(item.type)
    return re.sub(r"\b(\w+\.)+", "", text)


_OF_PARTS = kinds_of_lines(capabilities())
PART_KINDS = [kind.kind for kind in _OF_PARTS]
"""The kinds of lines that parts of capabilities write."""
KINDS: Mapping[str, type[Line]] = {kind.kind: kind for kind in (*_CORE, *_OF_PARTS)}
"""The kinds of lines, by the name that tells them apart."""
FITS: Mapping[type, Mapping[str, Fits]] = {
    kind: {item.name: _BY_TYPE[_type_of(item)] for item in fields(kind)}
    for kind in (*KINDS.values(), ModelRun, StepEntry, Compilation, *PARTS)
}
"""A test for the value of each field, by class."""
_OF_TEXT = ("str", "str | None", "Sequence[str]", "Mapping[str, str]")


_TEXTS = {
    kind: frozenset(
        item.name
        for one in (kind, ModelRun, StepEntry, Compilation, *PARTS)
        for item in fields(one)
        if _type_of(item) in _OF_TEXT
    )
    for kind in KINDS.values()
}
"""The fields of texts in a line of each class."""


def parsed(data: Mapping[str, Any], path: Path) -> Line:
    """The line from JSON; fields that an older hookcli did not know have their defaults.

    Raises UsageError for the header of a newer hookcli; KeyError, TypeError or ValueError if the line is incomplete.
    """
    schema = data["schema"] if data["line"] == Header.kind else RUN_SCHEMA
    if schema > RUN_SCHEMA:
        raise UsageError(f"{path}: schema {schema} is of a newer hookcli; this one knows {RUN_SCHEMA}: upgrade it")
    kind = KINDS[data["line"]]
    fields = {name: data[name] for name in FITS[kind] if name in data and name != "reports"}
    values = relaxed(fields, _TEXTS[kind])
    if "reports" in FITS[kind]:
        values["reports"] = tuple(sound(Report.from_dict(item)) for item in data["reports"])
    require(values, FITS[kind])
    return kind(**values)
