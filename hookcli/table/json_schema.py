"""JSON Schema (2020-12) of the document that `--format json` writes, made from the declared columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hookcli.table.column import Column, Kind
from hookcli.table.columns import DECLARED
from hookcli.table.meta import Meta
from hookcli.table.report import SCHEMA, Finding, Reason
from hookcli.table.validation import GROUPINGS, SENTENCES

Schema = dict[str, Any]


def _type(*kinds: str) -> Schema:
    return {"type": kinds[0] if len(kinds) == 1 else [*kinds]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _any(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    return {"type": "object", "properties": dict(properties), "required": [*required]}


_COUNT, _TEXT, _FLAG, _NULL = {"type": "integer", "minimum": 0}, _type("string"), _type("boolean"), _type("null")
_FIGURE, _SHAPE, _PLAIN = map(_ref, ("figure", "shape", "plain"))
_KINDS: dict[Kind, Schema] = {
    Kind.ANY: _PLAIN,
    **dict.fromkeys((Kind.TEXT, Kind.SOURCE), _TEXT),
    **dict.fromkeys((Kind.COUNT, Kind.QUANTITY, Kind.ELEMENTS, Kind.FAULTS, Kind.BYTES), _COUNT),
    **dict.fromkeys((Kind.MAPPING, Kind.HISTOGRAM), _type("object")),
}
_KINDS |= {Kind.FLAG: _FLAG, Kind.BYTES_CHANGE: _type("integer"), Kind.SHAPE: _SHAPE, Kind.SHAPES: _list(_SHAPE)}
_KINDS |= {Kind.NAMES: _list(_TEXT), Kind.SETTINGS: _list(_FIGURE), Kind.NUMBERS: _list(_any(_COUNT, _NULL))}
_NUMBER = "A number. NaN and infinities are text, since strict JSON has none."
_SHARED: Schema = {
    "figure": {"description": _NUMBER, **_any(_type("number"), {"enum": ["NaN", "Infinity", "-Infinity"]})},
    "shape": {
        "description": "The shape of a tensor, or a list of several tensors' shapes.",
        **_list(_any(_type("integer"), _SHAPE)),
    },
    "plain": _any(_type("string", "number", "boolean", "null"), _list(_PLAIN)),
}


def _of_hint(hint: object) -> Schema:
    """The schema of the values of a type."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _PLAIN
    if kind is Literal:
        return {"enum": [*arguments]}
    if kind in (Sequence, tuple):
        return _list(_of_hint(arguments[0]))
    if kind in (Union, UnionType):
        return _any(*map(_of_hint, arguments))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [*map(str, hint)]}
    simple: Mapping[object, Schema] = {str: _TEXT, bool: _FLAG, int: _COUNT, float: _FIGURE, NoneType: _NULL}
    return simple.get(hint, _type("object"))


def _of_class(kind: type) -> dict[str, Schema]:
    return {name: _of_hint(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def document_schema(columns: Sequence[Column] = (), errors: Mapping[str, str] | None = None) -> Schema:
    """The schema of a document whose rows have these columns, or any that hookcli declares.

    `errors`: the ids of errors, with their meanings. Other keys are allowed everywhere: a later version may add some.
    """
    names = {"name": _TEXT, "title": _TEXT, "unit": _type("string", "null")}
    skipped = {**dict.fromkeys(("fqn", "reason", "path"), _TEXT), "kind": _of_hint(Reason)}
    report = {"probe": _TEXT, "model": _TEXT, "meta": _ref("meta"), "totals": _ref("totals")}
    report |= {f"{name}s": _list(_ref(name)) for name in ("column", "row", "finding")}
    report["skipped"] = _list(_ref("skipped"))
    ids = [{"const": name, "description": text} for name, text in (errors or {}).items()]
    error = {"id": {"oneOf": ids} if ids else _TEXT, "message": _TEXT, "exit_code": _COUNT}
    values: dict[str, Schema] = {}
    for column in columns or DECLARED.values():
        kind = _KINDS.get(column.kind, _FIGURE)
        texts = {"title": column.full or column.title, "description": column.explanation, "x-unit": column.unit}
        about = {key: text for key, text in texts.items() if text}
        tells_the_place = {"x-identity": True} if column.identity else {}
        values[column.name] = (kind if column.required else _any(kind, _NULL)) | about | tells_the_place
    parts = {
        "row": _object(values),
        "meta": _object(_of_class(Meta)),
        "column": _object(names, names),
        "skipped": _object(skipped, ("fqn", "reason")),
        "finding": _object(_of_class(Finding), ("check", "message")),
        "totals": _object(dict.fromkeys(SENTENCES, _TEXT)),
        "report": _object({**report, "grouping": {"enum": [*GROUPINGS]}}, report),
        "error": _object({**error, "option": _TEXT, "fqn": _TEXT}, error),
    }
    whole = {"schema": {"const": SCHEMA}, "reports": _list(_ref("report"))}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The document of `hookcli ... --format json`",
        **_object({**whole, "error": _ref("error")}, whole),
        "$defs": {**_SHARED, **parts},
    }
