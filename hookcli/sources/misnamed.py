"""Paths that were given in place of a model, and what to type instead. Runs nothing, and imports no torch."""

from __future__ import annotations

import ast
from pathlib import Path

from hookcli.system.escaping import shell_path
from hookcli.system.files import content, is_file, is_folder

_SHOWN = 6  # names of a file
_TRAINS = b".backward("


def meant_by(spec: str) -> str:
    """The error for a path that is no model, with what to type; "" for any other text."""
    path = Path(spec)
    if is_folder(path):
        return f"{spec!r} is a folder of Transformers; did you mean hf:{spec}?" if is_file(path / "config.json") else ""
    if not is_file(path):
        return ""
    if path.suffix == ".jsonl":
        return f"{spec!r} is a record, not a model; `hookcli show {shell_path(path)}` shows it"
    return _of_code(path) if path.suffix == ".py" else ""


def _of_code(path: Path) -> str:
    """Name the classes, else the functions, of a Python file; a script that trains is recorded."""
    try:
        code = content(path)
        body = ast.parse(code).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""
    classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    names = [f"{path}:{name}" for name in classes or functions if not name.startswith("_")]
    more = f" or {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    model = f"name the model in it: {' or '.join(names[:_SHOWN])}{more}" if names else ""
    script = "record each script with `hookcli run`, then compare the records with `hookcli diff`"
    parts = filter(None, (model, script if _TRAINS in code or not names else ""))
    return f"{str(path)!r} is a Python file: {'; or '.join(parts)}"
