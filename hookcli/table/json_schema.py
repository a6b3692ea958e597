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
_COUNT = {"type": "integer", "minimum": 0}
_FIGURE = {"$ref": "#/$defs/figure"}
_SHAPE = {"$ref": "#/$defs/shape"}
_TEXT: Schema = {"type": "string"}
_NULL = {"type": "null"}
_KINDS: Mapping[Kind, Schema] = {
    Kind.ANY: {"$ref": "#/$defs/plain"},
    **dict.fromkeys((Kind.TEXT, Kind.SOURCE), _TEXT),
    Kind.NAMES: {"type": "array", "items": _TEXT},
    Kind.FLAG: {"type": "boolean"},
    **dict.fromkeys((Kind.COUNT, Kind.QUANTITY, Kind.ELEMENTS, Kind.FAULTS, Kind.BYTES), _COUNT),
    Kind.BYTES_CHANGE: {"type": "integer"},
    Kind.SETTINGS: {"type": "array", "items": _FIGURE},
    Kind.SHAPE: _SHAPE,
    Kind.SHAPES: {"type": "array", "items": _SHAPE},
    Kind.NUMBERS: {"type": "array", "items": {"anyOf": [_COUNT, _NULL]}},
    Kind.MAPPING: {"type": "object"},
    Kind.HISTOGRAM: {"type": "object"},
}
_SHARED: Schema = {
    "figure": {
        "description": "A number. NaN and infinities are text, since strict JSON has none.",
        "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
    },
    "shape": {
        "description": "The shape of a tensor, or a list of those of several.",
        "type": "array",
        "items": {"anyOf": [{"type": "integer"}, _SHAPE]},
    },
    "plain": {
        "description": "Text, a number, true or false, null, or a list of these.",
        "anyOf": [
            {"type": ["string", "number", "boolean", "null"]},
            {"type": "array", "items": {"$ref": "#/$defs/plain"}},
        ],
    },
}


def of_column(column: Column) -> Schema:
    """The schema of a column's values. Its title, unit and explanation go with it; `x-identity`: it tells the place."""
    kind = _KINDS.get(column.kind, _FIGURE)
    shape: Schema = dict(kind) if column.required else {"anyOf": [kind, _NULL]}
    texts = {"title": column.full or column.title, "description": column.explanation, "x-unit": column.unit}
    return (
        shape | {key: text for key, text in texts.items() if text} | ({"x-identity": True} if column.identity else {})
    )


def of_hint(hint: object) -> Schema:
    """The schema of the values of a type."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _KINDS[Kind.ANY]
    if kind is Literal:
        return {"enum": [*arguments]}
    if kind in (Sequence, tuple):
        return {"type": "array", "items": of_hint(arguments[0])}
    if kind in (Union, UnionType):
        return {"anyOf": [*map(of_hint, arguments)]}
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"enum": [*map(str, hint)]}
    simple: Mapping[object, Schema] = {
        str: _TEXT,
        bool: {"type": "boolean"},
        int: _COUNT,
        float: _FIGURE,
        NoneType: _NULL,
    }
    return simple.get(hint, {"type": "object"})


def _object(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    return {"type": "object", "properties": dict(properties), "required": [*required]}


def document_schema(columns: Sequence[Column] = (), errors: Mapping[str, str] | None = None) -> Schema:
    """The schema of a document whose rows have these columns, or any that hookcli declares.

    `errors`: the ids of errors, with their meanings. Other keys are allowed everywhere: a later version may add some.
    """
    known = columns or [*DECLARED.values()]
    names = {"name": _TEXT, "title": _TEXT, "unit": {"type": ["string", "null"]}}
    ids = [{"const": name, "description": text} for name, text in (errors or {}).items()]
    parts = {
        "row": _object({column.name: of_column(column) for column in known}),
        "meta": _object({name: of_hint(hint) for name, hint in get_type_hints(Meta, include_extras=True).items()}),
        "column": _object(names, names),
        "skipped": _object(
            {**dict.fromkeys(("fqn", "reason", "path"), _TEXT), "kind": of_hint(Reason)}, ("fqn", "reason")
        ),
        "finding": _object(
            {name: of_hint(hint) for name, hint in get_type_hints(Finding).items()}, ("check", "message")
        ),
        "totals": _object(dict.fromkeys(SENTENCES, _TEXT)),
    }
    lists = {"columns": "column", "rows": "row", "skipped": "skipped", "findings": "finding"}
    report = {"probe": _TEXT, "model": _TEXT, "grouping": {"enum": [*GROUPINGS]}}
    report |= {name: {"$ref": f"#/$defs/{name}"} for name in ("meta", "totals")}
    report |= {name: {"type": "array", "items": {"$ref": f"#/$defs/{item}"}} for name, item in lists.items()}
    error = {
        "id": {"oneOf": ids} if ids else _TEXT,
        "message": _TEXT,
        "exit_code": _COUNT,
        "option": _TEXT,
        "fqn": _TEXT,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The document of `hookcli ... --format json`",
        **_object(
            {
                "schema": {"const": SCHEMA},
                "reports": {"type": "array", "items": {"$ref": "#/$defs/report"}},
                "error": {"$ref": "#/$defs/error"},
            },
            ("schema", "reports"),
        ),
        "$defs": {
            **_SHARED,
            **parts,
            "report": _object(report, report.keys() - {"grouping"}),
            "error": _object(error, ("id", "message", "exit_code")),
        },
    }
