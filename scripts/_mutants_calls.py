"""Which tests run which blocks of the package: one recording of the whole suite, kept in a file and continued.

Every block of statements (a function's body, a branch, a loop) notes in a copy of the package that a test has run it.
As a plugin of pytest, this module names that test in a variable of the environment, also for processes that the test
starts with their own variables, and logs how long each test takes and whether it passes.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _mutants import Drawn, functions

_TEST = "HOOKCLI_MUTANTS_TEST"  # as PYTEST_CURRENT_TEST, which pytests that a test starts would change
LOG = "HOOKCLI_MUTANTS_LOG"
"""Folder of the recording, in the environment of the tests."""
_NOTE = """import os
import zlib
seen = set()
def note(block, environ=os.environ._data, add=seen.add, clear=seen.clear, seen=seen, open=os.open, write=os.write,
         close=os.close, flags=os.O_WRONLY | os.O_APPEND | os.O_CREAT, crc32=zlib.crc32):
    test = environ.get(b"HOOKCLI_MUTANTS_TEST")
    if test and test not in seen:
        clear()
        add(test)
    if test and block not in seen:
        add(block)
        name, _, phase = test.rpartition(b" ")
        try:
            file = open({log!r}, flags)
        except OSError:
            return
        write(file, b"%08x%s%d\\n" % (crc32(name), b"s" if phase == b"(setup)" else b" ", block))
        close(file)
"""


Callers = dict[tuple[str, str, int], set[str]]
"""The tests that run each block: its file, function and number."""


class Block(NamedTuple):
    """Statements that run one after the other: their function, their number in it, the first and the last line."""

    function: str
    number: int
    first: int
    last: int


def blocks(tree: ast.Module) -> Iterator[Block]:
    """Yield the blocks of the functions in a file, but for those that Triton reads as text."""
    for name, function in functions(tree):
        if not any("jit" in ast.unparse(decorator) for decorator in function.decorator_list):
            found = [(first, last) for first, last in _bodies(function) if first > function.lineno]
            yield from (Block(name, number, *lines) for number, lines in enumerate(found))


def _bodies(node: ast.AST) -> Iterator[tuple[int, int]]:
    """First and last lines of the blocks in a function, but for functions in it."""
    for name, value in ast.iter_fields(node):
        if name in ("body", "orelse", "finalbody") and isinstance(value, list) and not _is_elif(node, value):
            yield from _lines(value)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.expr)):
            yield from _bodies(child)


def _is_elif(node: ast.AST, body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(node, ast.If) and isinstance(first, ast.If) and first.col_offset == node.col_offset


def _lines(body: list[ast.stmt]) -> Iterator[tuple[int, int]]:
    docstring = bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    for first in body[docstring : docstring + 1]:
        yield _first_line(first), body[-1].end_lineno or first.lineno


class Recording:
    """What is known of the suite, in a folder: the `seconds` of each test, and which tests run a block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        names = folder / "blocks.json"
        self.names: list[list[Any]] = json.loads(names.read_text()) if names.exists() else []
        self.seconds: dict[str, float] = {}

    def instrument(self, package: Path) -> None:
        """Have the package in this folder note its blocks."""
        numbers = {tuple(name): number for number, name in enumerate(self.names)}
        for path in sorted(package.rglob("*.py")):
            text = path.read_text()
            tree, lines = ast.parse(text), text.splitlines(keepends=True)
            found = sorted(blocks(tree), key=lambda block: -block.first)
            for block in found:
                name = (str(path.relative_to(package.parent)), block.function, block.number)
                number = numbers.setdefault(name, len(numbers))
                line = lines[block.first - 1]
                lines.insert(block.first - 1, f"{line[: len(line) - len(line.lstrip())]}_note_({number})\n")
            if found:
                start = next(part for part in tree.body if not _comes_first(part))
                lines.insert(_first_line(start) - 1, "from hookcli._calls import note as _note_\n")
            path.write_text("".join(lines))
        self.names = [list(name) for name in numbers]
        (self.folder / "blocks.json").write_text(json.dumps(self.names))
        (package / "_calls.py").write_text(_NOTE.format(log=str(self.folder / "calls")))

    def read(self) -> Callers:
        """The tests that run each block. What a fixture runs counts for all tests of its file."""
        self.seconds, known = timed(self.folder)
        codes = {zlib.crc32(test.encode()): plain(test) for test in known}
        files: dict[str, set[str]] = defaultdict(set)
        for test in self.seconds:
            files[test.partition("::")[0]].add(test)
        found: dict[int, set[str]] = defaultdict(set)
        for line in (self.folder / "calls").read_bytes().splitlines():
            test = codes.get(int(line[:8], 16), "")
            if line[8:9] == b"s":
                found[int(line[9:])] |= files[test.partition("::")[0]]
            elif test in self.seconds:
                found[int(line[9:])].add(test)
        return {(path, function, at): found[i] for i, (path, function, at) in enumerate(self.names)}


def chosen(mutant: Drawn, callers: Callers, seconds: Mapping[str, float], most: int) -> tuple[list[str], float]:
    """Tests that run the block of a mutant, the quickest first, and the time that they take.

    Half of them are of the files that are named after the module or lie in its folder's tests; the others are the
    quickest of each file in turn, since tests that are alike miss the same changes.
    """
    path = mutant.path.relative_to(Path(__file__).parents[1])
    around = [block for block in blocks(ast.parse(mutant.path.read_text())) if block.first <= mutant.line <= block.last]
    if around:
        block = min(around, key=lambda block: block.last - block.first)
        tests = callers.get((str(path), block.function, block.number), set())
    else:
        tests = set().union(*(found for (file, _, _), found in callers.items() if file == str(path)))
    near = path.parts[1].removesuffix(".py")
    if not around and not tests:  # a file without functions that note their tests
        tests = {test for test in seconds if test.startswith(f"tests/{near}")}
    alike, files = Counter[str](), Counter[str]()
    ranked: list[tuple[bool, int, int, float, str]] = []
    for test in sorted(tests, key=lambda test: seconds[test]):
        file, name = test.partition("::")[0], test.partition("[")[0]
        files[file] += not alike[name]
        alike[name] += 1
        ranked.append((not file.endswith(f"test_{path.stem}.py"), alike[name], files[file], seconds[test], test))
    beside = [one for one in sorted(ranked) if not one[0] or f"tests/{near}" in one[-1]][: most // 2]
    first = dict.fromkeys([*beside, *sorted(ranked, key=lambda one: one[1:])])
    picked = sorted(one[-2:] for one in [*first][:most])
    return [test for _, test in picked], sum(took for took, _ in picked)


def timed(folder: Path) -> tuple[dict[str, float], set[str]]:
    """The seconds of each test that was not skipped, and all tests that ran, as pytest-xdist names them.

    A test alone has to wait for a fixture that another one of its file has waited for. Some tests fail where blocks
    note them: whatever kills a mutant must pass without it in any case.
    """
    seconds: dict[str, float] = {}
    fixtures: dict[str, float] = defaultdict(float)
    known: set[str] = set()
    if (folder / "tests").exists():
        for line in (folder / "tests").read_text().splitlines():
            name, when, outcome, took = json.loads(line)
            known.add(name)
            test, file = plain(name), name.partition("::")[0]
            if when == "setup":
                seconds[test] = 0.0
                fixtures[file] = max(fixtures[file], took)
            elif test in seconds:
                seconds[test] += took
            if outcome == "skipped":
                seconds.pop(test, None)
    return {test: took + fixtures[test.partition("::")[0]] for test, took in seconds.items()}, known


def plain(test: str) -> str:
    """The name of a test without its group, which pytest-xdist appends."""
    return re.sub(r"@[^\]@]*$", "", test)


def _comes_first(part: ast.stmt) -> bool:
    docstring = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
    return docstring or (isinstance(part, ast.ImportFrom) and part.module == "__future__")


def _first_line(part: ast.stmt) -> int:
    return min(one.lineno for one in (part, *getattr(part, "decorator_list", ())))


def pytest_configure(config: Any) -> None:
    """Hand the name of the test on to processes that get other variables."""
    start = subprocess.Popen.__init__

    def named(self: Any, *args: Any, **options: Any) -> None:
        if _TEST in os.environ and options.get("env") is not None:
            options["env"] = {_TEST: os.environ[_TEST]} | dict(options["env"])
        start(self, *args, **options)

    subprocess.Popen.__init__ = named  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out the tests that an earlier recording has run."""
    known = {plain(name) for name in timed(Path(os.environ[LOG]))[1]}
    items[:] = [item for item in items if item.nodeid not in known]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    os.environ[_TEST] = f"{item.nodeid} (setup)"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    os.environ[_TEST] = f"{item.nodeid} (call)"


class Controller:
    """Logs the tests that ran, in the process that hears of all of them."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        with Path(os.environ[LOG], "tests").open("a") as file:
            file.write(json.dumps([report.nodeid, report.when, report.outcome, report.duration]) + "\n")


def pytest_sessionstart(session: Any) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Controller())
