"""Small changes of Python source: the mutants of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

OTHER: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
    ast.And: ast.Or,
    ast.Add: ast.Sub,
    ast.Mult: ast.Div,
}
OTHER |= {other: one for one, other in OTHER.items()}
_SKIPPED = ("annotation", "returns", "decorator_list", "exc", "msg")


class Mutant(NamedTuple):
    """A change in a file: the lines and columns (in bytes) of what goes, and what comes."""

    path: Path
    place: tuple[int, int, int, int]
    new: str

    def applied(self) -> tuple[str, str]:
        """The changed source, and the piece of it that is gone."""
        data = self.path.read_bytes()
        lines = data.splitlines(keepends=True)
        start, end = (sum(map(len, lines[: self.place[i] - 1])) + self.place[i + 1] for i in (0, 2))
        return (data[:start] + self.new.encode() + data[end:]).decode(), data[start:end].decode()


class Unit(NamedTuple):
    """A function, at the line where its body begins; or, without a name, the constants of a module."""

    path: Path
    name: str
    line: int
    mutants: list[Mutant]


def units(path: Path) -> Iterator[Unit]:
    """What a file consists of; functions inside functions are units of their own."""
    tree = ast.parse(path.read_text())
    blocks = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    constants = [part for block in blocks for part in block.body if isinstance(part, (ast.Assign, ast.AnnAssign))]
    yield Unit(path, "", 0, [mutant for constant in constants for mutant in _inside(path, constant)])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.body[-1].lineno > node.lineno:
            first = node.body[bool(ast.get_docstring(node) and node.body[1:])]
            line = min(part.lineno for part in (first, *getattr(first, "decorator_list", ())))
            yield Unit(path, f"{node.name}:{node.lineno}", line, list(_inside(path, node)))


def _inside(path: Path, node: ast.AST) -> Iterator[Mutant]:
    for name, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) and name not in _SKIPPED else [value]:
            if not isinstance(part, ast.AST) or isinstance(part, (ast.FunctionDef, ast.arguments)) or name in _SKIPPED:
                continue
            for first, last, new in (*_expressions(part), *_statements(part)):
                yield Mutant(path, (first.lineno, first.col_offset, last.end_lineno, last.end_col_offset), new)
            yield from _inside(path, part)


def _expressions(node: Any) -> Iterator[tuple[Any, Any, str]]:
    """From where to where an expression changes, and what is there instead."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OTHER:
            yield node, node, f"({ast.unparse(ast.Compare(left, [OTHER[type(op)]()], [right]))})"
        case ast.BoolOp(op=op, values=values):
            yield node, node, f"({ast.unparse(ast.BoolOp(OTHER[type(op)](), values))})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER:
            yield node, node, f"({ast.unparse(ast.BinOp(left, OTHER[type(op)](), right))})"
        case ast.Constant(value=bool(value)):
            yield node, node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, node, str(value + 1)
        case ast.Call(func=func, args=[ast.expr() as first, ast.expr() as second, *_]):
            if "is" not in ast.unparse(func)[:2] and not isinstance(first, ast.Starred):  # isinstance would only raise
                yield first, second, f"{ast.unparse(second)}, {ast.unparse(first)}"


def _statements(node: Any) -> Iterator[tuple[Any, Any, str]]:
    """Statements that go, and conditions that are turned round."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield node, node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, node, "pass"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, test, f"(not ({ast.unparse(test)}))"
