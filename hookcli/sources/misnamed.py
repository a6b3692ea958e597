"""Paths that were given in place of a model, and what to type instead. Runs nothing, and imports no torch."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeGuard

from hookcli.registry.capability import file_source
from hookcli.sources.catalog import package_folder
from hookcli.system.escaping import shell_path
from hookcli.system.files import content, is_file, is_folder
from hookcli.tensors.files.file_kinds import kind_of
from hookcli.tensors.files.opening import holds_tensors

_LARGEST = 2**20  # bytes of a file in which a class is looked for
_MOST = 200  # files of a folder
_SHOWN = 6  # names of a file
_TRAINS = re.compile(rb"\.(backward|fit|step)\(|Trainer\(")
_FACTORY = re.compile(r"(?i)(build|make|create)|.*(model|net)")


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


@dataclass(frozen=True, slots=True)
class Code:
    """A Python file: specs of the models that may be in it; `runs` if it trains, or has none, so that it is run."""

    names: list[str]
    runs: bool


def code_of(spec: str) -> Code | None:
    """The models that a Python file may hold; None for other files, and for one that can't be read.

    They are the functions that run without arguments and return a value, and the classes. Those whose names say that
    they make a model come first, then classes.
    """
    if not spec.endswith(".py"):
        return None
    try:
        text = content(spec)
        body = ast.parse(text).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    nodes = sorted((node for node in body if _may_be_model(node)), key=_order)
    return Code([f"{spec}:{node.name}" for node in nodes], not nodes or _TRAINS.search(text) is not None)


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
            if any(_may_be_model(node) and node.name == last for node in nodes):
                specs.append(f"{file}:{last}")
    if folders and not specs and package_folder(folders[0]):
        specs = [f"{'.'.join(folders)}:{last}"]
    return f"unknown model {name!r}; did you mean {' or '.join(specs[:_SHOWN])}?" if specs else ""


def _may_be_model(node: ast.stmt) -> TypeGuard[ast.ClassDef | ast.FunctionDef]:
    """True for a public class, and for a public function that can be called without arguments and returns a value."""
    if isinstance(node, ast.FunctionDef):
        args = node.args
        needed = len(args.posonlyargs + args.args) - len(args.defaults) + args.kw_defaults.count(None)
        if needed or not any(isinstance(one, ast.Return) and one.value for one in ast.walk(node)):
            return False
    return isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")


def _order(node: ast.ClassDef | ast.FunctionDef) -> int:
    """Functions that are named as factories, then classes, then others."""
    if isinstance(node, ast.ClassDef):
        return 1
    return 0 if _FACTORY.match(node.name) else 2
