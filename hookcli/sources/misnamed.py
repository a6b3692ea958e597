"""Paths that were given in place of a model, and what to type instead. Runs nothing, and imports no torch."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TypeGuard

from hookcli.registry.capability import file_source
from hookcli.system.escaping import shell_path
from hookcli.system.files import content, is_file, is_folder
from hookcli.tensors.files.file_kinds import kind_of
from hookcli.tensors.files.opening import holds_tensors

_SHOWN = 6  # names of a file
_TRAINS = b".backward("
_FACTORY = re.compile(r"(?i)(build|make|create)|.*(model|net)")


def meant_by(spec: str) -> str:
    """The error for a path that is no model, with what to type; "" for any other text."""
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
        return _of_code(path)
    if kind := kind_of(path):
        return f"{spec!r} is {kind}"
    if holds_tensors(spec):
        return f"{spec!r} is a file of weights, not a model: give the model, and --weights {shell_path(spec)}"
    return ""


def _of_code(path: Path) -> str:
    """Name the functions that run without arguments and return a value, and the classes, of a Python file.

    Those whose names say that they make a model come first, then modules. A script that trains is recorded.
    """
    try:
        code = content(path)
        body = ast.parse(code).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""
    nodes = sorted((node for node in body if _may_be_model(node)), key=_order)
    names = [f"{path}:{node.name}" for node in nodes]
    more = f" or {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    model = f"name the model in it: {' or '.join(names[:_SHOWN])}{more}" if names else ""
    script = "record each script with `hookcli run`, then compare the records with `hookcli diff`"
    parts = filter(None, (model, script if _TRAINS in code or not names else ""))
    return f"{str(path)!r} is a Python file: {'; or '.join(parts)}"


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
