"""Small changes of Python source: the mutants of a file."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
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
    """A function; or, without a name, the constants of a module."""

    path: Path
    name: str
    mutants: list[Mutant]


class Drawn(NamedTuple):
    """A mutant of a sample, by a name that stays when lines around it change."""

    name: str
    mutant: Mutant

    @property
    def path(self) -> Path:
        return self.mutant.path

    @property
    def line(self) -> int:
        return self.mutant.place[0]


def drawn(files: Sequence[Path], root: Path, number: int, seed: int) -> list[Drawn]:
    """Functions of each folder, as many as are its share, and a mutant of each: those whose hashes are the least.

    So most of them stay in the sample when other functions come, change or go.
    """

    def least(*what: str) -> bytes:
        return hashlib.sha256(repr((seed, *what)).encode()).digest()

    folders: dict[Path, list[tuple[str, Unit]]] = defaultdict(list)
    for path in files:
        for unit in units(path):
            if unit.mutants:
                folders[path.parent].append((f"{path.relative_to(root)}:{unit.name}", unit))
    total, before, found = sum(map(len, folders.values())), 0, list[Drawn]()
    for folder in sorted(folders):
        first, before = before, before + len(folders[folder])
        share = (before * number + total // 2) // total - (first * number + total // 2) // total
        for name, unit in sorted(folders[folder], key=lambda one: least(one[0]))[:share]:
            found.append(min(_named(name, unit), key=lambda mutant: least(mutant.name)))
    return found


def standing_at(places: Sequence[str], root: Path) -> list[Drawn]:
    """All mutants of these lines, each given as FILE:LINE."""
    found = []
    for file, _, line in (place.rpartition(":") for place in places):
        for unit in units(root / file):
            found += [one for one in _named(f"{file}:{unit.name}", unit) if one.line == int(line)]
    return found


def _named(name: str, unit: Unit) -> Iterator[Drawn]:
    counts = Counter[str]()
    for mutant in unit.mutants:
        change = f"{name}: " + " ".join(f"{mutant.applied()[1]} -> {mutant.new}".split())
        counts[change] += 1
        yield Drawn(change if counts[change] == 1 else f"{change} #{counts[change]}", mutant)


def units(path: Path) -> Iterator[Unit]:
    """What a file consists of; functions inside functions are their own units."""
    tree = ast.parse(path.read_text())
    places = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    constants = [part for place in places for part in place.body if isinstance(part, (ast.Assign, ast.AnnAssign))]
    yield Unit(path, "", [mutant for constant in constants for mutant in _inside(path, constant)])
    for name, node in functions(tree):
        if node.body[-1].lineno > node.lineno:
            yield Unit(path, name, list(_inside(path, node)))


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions in a piece of source, each with the names of classes and functions around it."""
    for child in ast.iter_child_nodes(node):
        name = f"{outer}{child.name}" if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else ""
        if isinstance(child, ast.FunctionDef):
            yield name, child
        yield from functions(child, f"{name}." if name else outer)


def _inside(path: Path, node: ast.AST) -> Iterator[Mutant]:
    for name, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) and name not in _SKIPPED else [value]:
            if not isinstance(part, ast.AST) or isinstance(part, (ast.FunctionDef, ast.arguments)) or name in _SKIPPED:
                continue
            if isinstance(part, ast.keyword) and ast.unparse(part) == "strict=True":
                continue  # what only an error of ours would notice
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
            swapped = f"{ast.unparse(second)}, {ast.unparse(first)}"
            alike = swapped == f"{ast.unparse(first)}, {ast.unparse(second)}"
            if "is" not in ast.unparse(func)[:2] and not isinstance(first, ast.Starred) and not alike:
                yield first, second, swapped  # isinstance would only raise


def _statements(node: Any) -> Iterator[tuple[Any, Any, str]]:
    """Statements that go, and conditions that are turned round."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield node, node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, node, "pass"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, test, f"(not ({ast.unparse(test)}))"
