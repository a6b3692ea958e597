"""Paths that were given in place of a model, and what to type instead. Runs nothing, and imports no torch."""

from __future__ import annotations

import ast
from contextlib import suppress
from itertools import islice
from pathlib import Path

from hookcli.registry.capability import file_source
from hookcli.sources.catalog import package_folder
from hookcli.sources.module_code import code_of, may_be_model
from hookcli.system.escaping import shell_path
from hookcli.system.files import content, is_file, is_folder
from hookcli.tensors.files.file_kinds import kind_of
from hookcli.tensors.files.opening import holds_tensors

_LARGEST = 2**20  # bytes of a file in which a class is looked for
_MOST = 200  # files of a folder
_SHOWN = 6  # names of a file


def meant_by(spec: str, *, compared: bool = False) -> str:
    """The error for a path that is not a model, with what to type; else "". `compared`: a side of `diff`."""
    path = Path(spec)
    if is_folder(path):
        if is_file(path / "config.json"):
            return f"{spec!r} is a folder of Transformers; did you mean hf:{spec}?"
        return f"{spec!r} is {kind}" if (kind := kind_of(path)) else ""
    if not is_file(path) or file_source(spec):
        return ""
    if path.name == "config.json":
        return f"{spec!r} is the configuration of a folder of Transformers; did you mean hf:{path.parent}?"
    if path.suffix == ".jsonl":
        return f"{spec!r} is a record, not a model; `hookcli show {shell_path(path)}` shows it"
    if path.suffix == ".py":
        return _of_code(spec, compared)
    if kind := kind_of(path):
        return f"{spec!r} is {kind}"
    if holds_tensors(spec):
        return f"{spec!r} is a file of weights, not a model: give the model, and --weights {shell_path(spec)}"
    return ""


def _of_code(spec: str, compared: bool) -> str:
    """Name the models of a Python file, and the command that records it if it is a script."""
    code = code_of(spec)
    if code is None:
        return ""
    more = f" or {len(code.names) - _SHOWN} more" if code.names[_SHOWN:] else ""
    model = f"name the model in it: {' or '.join(code.names[:_SHOWN])}{more}" if code.names else ""
    script = "record each script with `hookcli run`, then compare the records with `hookcli diff`"
    if not compared:
        path = shell_path(spec)
        script = f"record the script with `hookcli run {path}`, or check it with `hookcli run --check {path}`"
    parts = filter(None, (model, script if code.runs else ""))
    return f"{spec!r} is a Python file: {'; or '.join(parts)}"


def unknown_name(name: str) -> str:
    """The error for a name that no source knows, with the classes and functions for which it may stand: `Net` or
    `net.Net` of net.py; "" if there are none.
    """
    if name.isdecimal():
        return f"unknown model {name!r}; are these sizes of an input? Join them by x, as in --input 8x3x32x32"
    *folders, last = name.split(".")
    if not all(part.isidentifier() for part in (*folders, last)):
        return ""
    files = [Path(*folders).with_suffix(".py")] if folders else sorted(islice(Path().glob("*.py"), _MOST))
    specs = []
    for file in files:  # which are read, and not run
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            text = content(file, _LARGEST)
            nodes = ast.parse(text).body if last.encode() in text else []
            if any(may_be_model(node) and node.name == last for node in nodes):
                specs.append(f"{file}:{last}")
    if folders and not specs and package_folder(folders[0]):
        specs = [f"{'.'.join(folders)}:{last}"]
    return f"unknown model {name!r}; did you mean {' or '.join(specs[:_SHOWN])}?" if specs else ""
