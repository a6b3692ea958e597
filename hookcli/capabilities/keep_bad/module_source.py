"""Python that builds a module anew: from its repr, else from a pickle and the program's source of its classes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import decode_source, resolve_name
from pathlib import Path
from pickletools import genops
from symtable import SymbolTable, symtable
from typing import Any
from zipfile import ZipFile

import torch
from torch import nn

from hookcli.system.escaping import visible
from hookcli.system.files import content, member, opened
from hookcli.tensors import tree
from hookcli.tensors.random_state import restored_random_states

PLAIN = (type(None), bool, int, float, complex, str)
"""Types whose values a repr makes anew."""


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """Python that builds a module, after `definitions`; `...` with a `comment` if a person has to build it."""

    expression: str
    definitions: str = ""
    comment: str = ""


def module_source(module: nn.Module, pickled: Path) -> ModuleSource:
    """Return Python that builds the module. Writes the file `pickled` if that is needed."""
    expression = f"torch.nn.{module!r}"
    if _builds(expression, module):
        return ModuleSource(expression)
    try:
        torch.save(module, pickled)
    except Exception as error:  # the class decides what can be pickled
        return _unknown(f"{tree.type_text(module)} can't be pickled ({error})")
    with opened(pickled) as file, ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        named = [str(value).split(" ") for code, value, _ in genops(member(archive, name)) if code.name == "GLOBAL"]
    try:
        lines = of_program(name for module, name in named if module == "__main__")  # which can't be imported
    except (OSError, SyntaxError, LookupError) as error:
        pickled.unlink()
        return _unknown(f"{tree.type_text(module)} can't be built from the program's source ({error})")
    return ModuleSource("torch.load(here.with_suffix('.pt'), weights_only=False)", "\n".join(lines))


def _unknown(why: str) -> ModuleSource:
    return ModuleSource("...", comment=f"  # {visible(why)}: build it as the program does")


def _builds(expression: str, module: nn.Module) -> bool:
    """True if it builds a module of the same class and settings, with parameters and buffers of the same sizes."""
    if not type(module).__module__.startswith("torch.nn.") or "\n" in expression:
        return False
    try:
        with restored_random_states(), torch.device("meta"):
            made = eval(expression, {"torch": torch})
    except Exception:  # the repr is for people
        return False
    sizes = [{key: x.shape for key, x in (*m.named_parameters(), *m.named_buffers())} for m in (made, module)]
    if type(made) is not type(module) or sizes[0] != sizes[1]:
        return False
    # A repr may omit attributes. The script sets `training`.
    ours, theirs = ({key: x for key, x in vars(m).items() if not key.startswith("_")} for m in (made, module))
    return ours.keys() == theirs.keys() and all(_equal(ours[key], theirs[key]) for key in ours if key != "training")


def _equal(one: Any, other: Any) -> bool:
    if type(one) in (list, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_equal, one, other))
    return one is other or (type(one) is type(other) and type(one) in PLAIN and one == other)


_ALL = "*"
"""The name that `from x import *` binds, and a `__future__` import: they are always taken."""


def definitions(source: str, names: Iterable[str], package: str = "") -> list[str]:
    """Return the statements at the top level that define these names, and those that these use, in their order.

    Relative imports become absolute: `package` is the program's. Raises SyntaxError, and LookupError if no such
    statement defines a name: loops and `if __name__ == "__main__"` do not count.
    """
    statements = ast.parse(source).body
    bound = [set(_bound(one)) for one in statements]
    wanted, taken = {_ALL, *names}, set[int]()
    if missing := wanted - {_ALL}.union(*bound):
        raise LookupError(f"no statement at the program's top level defines {', '.join(sorted(missing))}")
    while new := {place for place, names in enumerate(bound) if names & wanted} - taken:
        taken |= new
        wanted |= {name for place in new for name in _used(statements[place])}
    for node in (node for place in taken for node in ast.walk(statements[place])):
        if isinstance(node, ast.ImportFrom) and node.level:
            node.module, node.level = resolve_name("." * node.level + (node.module or ""), package), 0
    return [ast.unparse(statements[place]) for place in sorted(taken)]


def of_program(names: Iterable[str]) -> list[str]:
    """Lines that define these names as the program (`__main__`) does. Raises OSError, or as `definitions` does."""
    program = sys.modules["__main__"]
    file = getattr(program, "__file__", None)
    package = getattr(program, "__package__", None) or ""
    folder = Path(file).absolute().parent if file else Path.cwd()
    folder = folder.parents[package.count(".")] if package and file else folder  # where Python looks for its modules
    lines = ["import sys", f"sys.path.insert(0, {str(folder)!r})"]
    if not (names := set(names)):
        return lines
    if file is None:
        raise OSError("it has no file")
    statements = definitions(decode_source(content(file)), names, package)
    future = [line for line in statements if line.startswith("from __future__ ")]  # which comes first in a file
    return [*future, *lines, *(line for line in statements if line not in future)]


def _bound(statement: ast.stmt | ast.ExceptHandler) -> Iterator[str]:
    """Yield the names that a statement binds at the top level. Of compound ones, `if` and `try` define; others work."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            yield _ALL
        yield from (name.asname or name.name.partition(".")[0] for name in statement.names)
    elif isinstance(statement, (ast.If, ast.Try, ast.ExceptHandler)) and not _is_guard(statement):
        parts = (part for part in ast.iter_child_nodes(statement) if isinstance(part, (ast.stmt, ast.ExceptHandler)))
        yield from (name for part in parts for name in _bound(part))
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        yield from (node.id for node in names if isinstance(node.ctx, ast.Store))


def _is_guard(statement: ast.AST) -> bool:
    """True for `if __name__ == "__main__"`."""
    names = ast.walk(statement.test) if isinstance(statement, ast.If) else ()
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in names)


def _used(statement: ast.stmt) -> Iterator[str]:
    """Yield the global names that a statement uses, also within the functions and classes that it defines."""

    def of(table: SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if (s.is_referenced() if top else s.is_global()))
        for child in table.get_children():
            yield from of(child)

    return of(symtable(ast.unparse(statement), "<program>", "exec"))
