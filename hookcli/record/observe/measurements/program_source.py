"""Takes from a program's source the statements that define some of its names, without those that do the work."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.util import decode_source, resolve_name
from pathlib import Path
from symtable import SymbolTable, symtable

from hookcli.system.files import content

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
    while found := {place for place, own in enumerate(bound) if own & wanted} - taken:
        taken |= found
        wanted |= {name for place in found for name in _used(statements[place])}
    return [ast.unparse(_absolute(statements[place], package)) for place in sorted(taken)]


def of_program(names: Iterable[str]) -> list[str]:
    """Return lines that define these names as this program does, which is `__main__`, and let its modules be imported.

    Raises OSError if its source can't be read, and as `definitions` does.
    """
    program = sys.modules["__main__"]
    file = getattr(program, "__file__", None)
    package = getattr(program, "__package__", None) or ""
    lines = ["import sys", f"sys.path.insert(0, {_folder(file, package)!r})"]
    if not (names := set(names)):
        return lines
    if file is None:
        raise OSError("it has no file")
    found = definitions(decode_source(content(file)), names, package)
    future = [line for line in found if line.startswith("from __future__ ")]  # which comes first in a file
    return [*future, *lines, *(line for line in found if line not in future)]


def _folder(file: str | None, package: str) -> str:
    """Return the folder in which Python looks for the program's own modules."""
    folder = Path(file).absolute().parent if file else Path.cwd()
    return str(folder.parents[package.count(".")] if package and file else folder)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds at the top level. Of compound ones, `if` and `try` define; others work."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            yield _ALL
        yield from (name.asname or name.name.partition(".")[0] for name in statement.names)
    elif isinstance(statement, (ast.If, ast.Try)) and not _is_main_guard(statement):
        yield from (name for part in ast.iter_child_nodes(statement) for name in _bound_within(part))
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        found = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        yield from (node.id for node in found)


def _bound_within(part: ast.AST) -> Iterator[str]:
    if isinstance(part, ast.ExceptHandler):
        yield from (name for one in part.body for name in _bound(one))
    elif isinstance(part, ast.stmt):
        yield from _bound(part)


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in {
        node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)
    }


def _used(statement: ast.stmt) -> Iterator[str]:
    """Yield the global names that a statement uses, also within the functions and classes that it defines."""

    def of(table: SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if (s.is_referenced() if top else s.is_global()))
        for child in table.get_children():
            yield from of(child)

    return of(symtable(ast.unparse(statement), "<program>", "exec"))


def _absolute(statement: ast.stmt, package: str) -> ast.stmt:
    """Return the statement with absolute imports."""
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and node.level:
            node.module, node.level = resolve_name("." * node.level + (node.module or ""), package), 0
    return statement
