"""The index of a dump: a folder of tensors that a run has seen, each with its place in the model; free of torch.

docs/dumps.md describes the format, which other programs may write, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from hookcli.errors import UsageError, shortened
from hookcli.system.files import is_file
from hookcli.table.column import Kind
from hookcli.table.columns import TEXTS
from hookcli.table.columns.layouts import DUMP_PLACE, DUMP_TENSOR
from hookcli.table.files import read_json, reason, write_whole
from hookcli.table.meta import Meta
from hookcli.table.report import Skipped
from hookcli.table.row import Row
from hookcli.table.strict_json import relaxed, strict

INDEX = "index.json"
SCHEMA = 1
INPUTS = "inputs-{}.safetensors"
"""The file of a batch's arguments, by its number."""
KINDS = ("output", "input", "grad", "grad_output", "grad_input")
"""Kinds of tensors: a module's output or input, a parameter's gradient, or the gradient of an output or input."""
GRADIENTS = KINDS[2:]


@dataclass(frozen=True)
class Dump:
    """The index of a dump.

    `tensors` has a row for each tensor, in the order in which they arrived: `kind` (one of KINDS), `fqn`, `type`,
    `batch`, `call`, `pass`, `index` (the order in which calls began), `path`, `source` (an operator's line in the
    program), `shape`, `dtype`, and `file` and `name`, its key in that file. One that was left out has a `reason` and no
    `file`. `modules` are all modules of the model (fqn and type), empty if unknown; a tensor of theirs without a row
    did not exist. `inputs` describes the arguments of each batch (see `hookcli.tensors.files.dump_reader`); it is empty
    if they are not in the dump. `narrowed`: only some modules were selected. `options`: the options of the run that
    another run must repeat. `meta` is a report's.
    """

    model: str
    tensors: Sequence[Row]
    meta: Meta = field(default_factory=Meta)
    modules: Sequence[tuple[str, str]] = ()
    skipped: Sequence[Skipped] = ()
    inputs: Sequence[Any] = ()
    narrowed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        """The kinds of its tensors."""
        return {row["kind"] for row in self.tensors}

    @property
    def held(self) -> list[Row]:
        """The rows of tensors that were not left out."""
        return [row for row in self.tensors if row["file"]]

    @property
    def has_inputs(self) -> bool:
        """True if it has the arguments of every batch."""
        return len(self.inputs) > max((row["batch"] for row in self.tensors), default=0)

    def write(self, folder: Path) -> None:
        """Write the index, whole or not at all. Raises OSError."""
        document = {
            "schema": SCHEMA,
            "model": self.model,
            "meta": dict(self.meta),
            "options": dict(self.options),
            "narrowed": self.narrowed,
            "inputs": list(self.inputs),
            "modules": [{"fqn": fqn, "type": kind} for fqn, kind in self.modules],
            "tensors": [row.flat() for row in self.tensors],
            "skipped": [item.to_dict() for item in self.skipped],
        }
        text = json.dumps(strict(document), ensure_ascii=False, allow_nan=False)
        write_whole(folder / INDEX, f"{text}\n", output=False)  # an interrupted dump is kept


def is_dump(text: str) -> bool:
    """True for the name of a folder that holds a dump's index."""
    return is_file(Path(text) / INDEX)


def read_dump(folder: str) -> Dump:
    """The index of a dump. Raises UsageError if it is damaged, empty, or written by a newer hookcli."""
    file = str(Path(folder) / INDEX)
    data = read_json(file, "the index of a dump", SCHEMA)
    try:
        return _parsed(relaxed(data, TEXTS))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: damaged, or not the index of a dump ({shortened(reason(error))})") from error


def _parsed(data: Mapping[str, Any]) -> Dump:
    rows = [
        _row(number, _of(dict, "a tensor", item)) for number, item in enumerate(_of(list, "tensors", data["tensors"]))
    ]
    options, meta = (_of(dict, key, data.get(key, {})) for key in ("options", "meta"))
    modules = _of(list, "modules", data.get("modules", []))
    return Dump(
        model=_of(str, "model", data.get("model", "")),
        tensors=rows,
        meta=meta,
        modules=[(_of(str, "fqn", item["fqn"]), _of(str, "type", item.get("type", ""))) for item in modules],
        skipped=[Skipped.from_dict(item) for item in _of(list, "skipped", data.get("skipped", []))],
        inputs=_of(list, "inputs", data.get("inputs", [])),
        narrowed=_of(bool, "narrowed", data.get("narrowed", False)),
        options=options,
    )


_TYPES: Mapping[Kind, type] = {Kind.TEXT: str, Kind.SOURCE: str, Kind.COUNT: int, Kind.SHAPE: list}
_FIELDS: Mapping[str, tuple[type, Any]] = {
    **{column.name: (_TYPES[column.kind], _TYPES[column.kind]()) for column in DUMP_PLACE},
    "kind": (str, "output"),
    **{column.name: (_TYPES[column.kind], None) for column in DUMP_TENSOR},
    "reason": (str, None),
}
"""The types of a tensor's values, and of absent ones; only `fqn`, and `file` or `reason`, are needed."""


def _row(number: int, item: Mapping[str, Any]) -> Row:
    values = {"fqn": _of(str, "fqn", item["fqn"]), "index": _of(int, "index", item.get("index", number))}
    for key, (kind, otherwise) in _FIELDS.items():
        value = item.get(key, otherwise)
        values[key] = value if value is None else _of(kind, key, value)
    if values["kind"] not in KINDS:
        raise ValueError(f"kind {values['kind']!r}, not one of {', '.join(KINDS)}")
    if values["file"] is None and values["reason"] is None:
        raise ValueError(f"{values['fqn']!r} has neither a file nor a reason why it was left out")
    if (file := values["file"]) is not None:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or {"\0", "\\"} & {*file}:
            raise ValueError(f"file {file!r} is not in the dump's folder")
        values["name"] = values["name"] or values["fqn"]
    return Row(values)


def _of(kind: Callable[..., Any], key: str, value: Any) -> Any:
    """The value, after a check of its type. Raises ValueError."""
    if type(value) is not kind or (kind is int and value < 0):
        raise ValueError(f"{key} is {shortened(repr(value), 60)}")
    return cast(Any, value)
