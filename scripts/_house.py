"""Measures of how the code stands: sizes, who knows whom, and how much a reader must hold in mind."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hookcli"
PLATFORMS = ("record", "diff", "page")
ANOTHER_WORD = "# another word"
"""Ends a line whose string only looks like a capability's name: a column, a keyword of PyTorch."""
MOST_DECISIONS, MOST_LINES, MOST_PARAMETERS, MOST_LINES_OF_FILE = 15, 40, 7, 400
Function = ast.FunctionDef | ast.AsyncFunctionDef


_BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.match_case)


def decisions(function: Function) -> int:
    """Return the number of decisions in a function's body, also inside expressions, plus one."""
    return 1 + sum(map(_decisions, function.body))


def _decisions(node: ast.AST) -> int:
    if isinstance(node, Function | ast.ClassDef):  # they count for themselves
        return 0
    count = int(isinstance(node, _BRANCHES))
    if isinstance(node, ast.comprehension):
        count = 1 + len(node.ifs)
    elif isinstance(node, ast.BoolOp):
        count = len(node.values) - 1
    return count + sum(map(_decisions, ast.iter_child_nodes(node)))


@dataclass
class House:
    """The measured package. Places are texts such as `hookcli/cli.py:62 _run`."""

    capabilities: list[str]
    lines: Counter[str] = field(default_factory=Counter)
    """Lines of Python by room: the first folder or file of the package, or `capabilities/NAME`."""
    imports_from_outside: list[str] = field(default_factory=list)
    imports_between: list[str] = field(default_factory=list)
    names_outside: list[str] = field(default_factory=list)
    other_words: int = 0
    complex_functions: list[tuple[int, str]] = field(default_factory=list)
    long_functions: list[tuple[int, str]] = field(default_factory=list)
    wide_functions: list[tuple[int, str]] = field(default_factory=list)
    private_functions: dict[str, str] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, int]:
        """Return every figure by its description."""
        files = [_lines(path) for path in PACKAGE.rglob("*.py")]
        scripts = (path for path in PACKAGE.rglob("*.js") if "vendor" not in path.parts)
        return {
            "lines of Python": self.lines.total(),
            "of these in capabilities": sum(n for room, n in self.lines.items() if "/" in room),
            "of these in platforms (record, diff, page)": sum(self.lines[room] for room in PLATFORMS),
            "lines of JavaScript": sum(map(_lines, scripts)),
            "lines of tests": sum(map(_lines, (ROOT / "tests").rglob("*.py"))),
            "capabilities": len(self.capabilities),
            "imports of capabilities from outside": len(self.imports_from_outside),
            "imports between capabilities": len(self.imports_between),
            "names of capabilities outside their folder": len(self.names_outside),
            "of such names said to be another word": self.other_words,
            f"functions with more than {MOST_DECISIONS} decisions": len(self.complex_functions),
            f"functions above {MOST_LINES} lines": len(self.long_functions),
            f"functions with more than {MOST_PARAMETERS} parameters": len(self.wide_functions),
            "private functions used once": sum(self.uses[name] <= 1 for name in self.private_functions.values()),
            f"files above {MOST_LINES_OF_FILE} lines": sum(lines > MOST_LINES_OF_FILE for lines in files),
        }


def measured() -> House:
    """Read the package and measure it."""
    folders = (PACKAGE / "capabilities").glob("*/__init__.py")
    house = House(sorted(path.parent.name for path in folders))
    for path in sorted(PACKAGE.rglob("*.py")):
        _add_file(house, path)
    return house


def _add_file(house: House, path: Path) -> None:
    source = path.read_text()
    nodes = [*ast.walk(ast.parse(source))]
    room = _room(path)
    own = room.partition("/")[2]
    house.lines[room] += source.count("\n")
    for target in sorted(_imported(nodes)):
        parts = target.split(".")
        if parts[1] == "capabilities" and parts[2:3] != [own] and parts[2:] and parts[2] in house.capabilities:
            arrows = house.imports_between if own else house.imports_from_outside
            arrows.append(f"{path.relative_to(ROOT)} -> {parts[2]}")
    for node in nodes:
        if isinstance(node, ast.Name):
            house.uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            house.uses[node.attr] += 1
        elif isinstance(node, Function):
            _add_function(house, node, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    _add_names(house, nodes, source.splitlines(), path, own)


def _add_function(house: House, node: Function, place: str) -> None:
    arguments = node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    figures = (
        (house.complex_functions, decisions(node), MOST_DECISIONS),
        (house.long_functions, (node.end_lineno or node.lineno) - node.lineno + 1, MOST_LINES),
        (house.wide_functions, sum(parameter is not None for parameter in parameters), MOST_PARAMETERS),
    )
    for places, figure, most in figures:
        if figure > most:
            places.append((figure, place))
    if node.name.startswith("_") and not node.name.startswith("__"):
        house.private_functions[place] = node.name


def _add_names(house: House, nodes: Sequence[ast.AST], lines: list[str], path: Path, own: str) -> None:
    """Add the strings that name another capability than the file's `own`.

    Docstrings are left out, and what a manifest comes `after`, which need not be there.
    """
    others = set(house.capabilities) - {own}
    after = {id(node.value) for node in nodes if isinstance(node, ast.keyword) and node.arg == "after"}
    for node in _strings(nodes):
        if id(node) in after and own and path.name == "__init__.py":
            continue
        words = {node.value, *re.findall(r"\bhookcli (\w+)", node.value)} & others
        if ANOTHER_WORD in lines[node.lineno - 1]:
            house.other_words += 1
        else:
            house.names_outside += [f"{path.relative_to(ROOT)}:{node.lineno} {word!r}" for word in sorted(words)]


def _strings(nodes: Sequence[ast.AST]) -> Iterator[ast.Constant]:
    documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Modules of hookcli that a file imports, at any depth, and as texts such as "hookcli.x.y:name"."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"^hookcli(?:\.\w+)+", node.value))
    return {name for name in names if name.startswith("hookcli.")}


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return "/".join(parts[:2]) if parts[0] == "capabilities" and len(parts) > 2 else parts[0]


def _lines(path: Path) -> int:
    return path.read_text().count("\n")
