"""Which models a Python file may hold, by its text alone. Runs nothing, and imports no torch."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TypeGuard

from hookcli.system.files import content

_TRAINS = re.compile(rb"\.(backward|fit|step)\(|Trainer\(")
_FACTORY = re.compile(r"(?i)(build|make|create)|.*(model|net)")


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
    nodes = sorted((node for node in body if may_be_model(node)), key=_order)
    return Code([f"{spec}:{node.name}" for node in nodes], not nodes or _TRAINS.search(text) is not None)


def trains_on_import(spec: str) -> bool:
    """Return True if importing the Python file of a spec trains: importing it then takes as long as running it.

    Such a file calls `backward()` at its top level, or calls one of its own functions there that does.
    """
    try:
        body = ast.parse(content(spec.rpartition(":")[0])).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    run = [_words(node) for node in body if not isinstance(node, defined)]
    words = set().union(*(one for one in run if "__name__" not in one))
    return "backward" in words.union(*(_words(functions[name]) for name in words & functions.keys()))


def _words(node: ast.AST) -> set[str]:
    """The names, and the names of attributes, in a piece of code."""
    nodes = [*ast.walk(node)]
    attributes = {one.attr for one in nodes if isinstance(one, ast.Attribute)}
    return attributes | {one.id for one in nodes if isinstance(one, ast.Name)}


def may_be_model(node: ast.stmt) -> TypeGuard[ast.ClassDef | ast.FunctionDef]:
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
