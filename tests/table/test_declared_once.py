"""A column is declared once, in table/columns: no other file lists names of columns, and none is loaded by string."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import typer
from parsed import OF_SOURCES, nodes

import hookcli
from hookcli.commands.app import build_app
from hookcli.table.columns import DECLARED, FAMILIES

pytestmark = OF_SOURCES
ROOT = Path(hookcli.__file__).parent
APART = (ROOT / "table" / "columns", ROOT / "registry")  # the declarations; attributes of checks, such as `severity`
FILES = sorted(file for file in ROOT.rglob("*.py") if not {*file.parents}.intersection(APART))
MOST = 2  # names of columns in one literal
BY_NAME = (
    "__init__.py",
    "registry/built_in.py",
    "commands/diff_kinds.py",
)  # the functions of the package, imported on first use, its plugins, and its kinds of sides


def options() -> set[str]:
    """Names of options and commands, some of which columns have, too."""
    app: Any = typer.main.get_command(build_app())
    return {*app.commands, *(parameter.name for command in app.commands.values() for parameter in command.params)}


def texts(nodes: list[ast.expr] | list[ast.expr | None]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def literals(node: ast.AST, *, in_function: bool = False) -> Iterator[tuple[int, set[str]]]:
    """Literals with their line and texts: sequences everywhere, mappings and arguments outside of functions.

    Within a function a mapping is a row that is being made, with a value for each name.
    """
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        yield node.lineno, texts(node.elts)
    elif isinstance(node, ast.Dict) and not in_function:
        yield node.lineno, texts(node.keys)
    elif isinstance(node, ast.Call) and not in_function:
        yield node.lineno, texts(node.args)
    inside = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for child in ast.iter_child_nodes(node):
        yield from literals(child, in_function=inside)


def test_no_other_file_lists_names_of_columns() -> None:
    names = set(DECLARED) - options()
    found = {
        f"{file.relative_to(ROOT)}:{line}": sorted(names & named)
        for file in FILES
        if file.name not in ("layout.py", "columns.py") or "capabilities" not in file.parts
        for line, named in literals(nodes(file.read_text())[0])
        if len(names & named) > MOST
    }
    assert not found


def test_no_capability_declares_another_column_under_a_name_that_is_taken() -> None:
    assert not [one.name for one in chain.from_iterable(FAMILIES) if one != DECLARED[one.name]]


def test_no_script_of_the_page_lists_names_of_columns() -> None:
    """A list, or an object of plain values, in one pair of brackets; comments aside."""
    names = set(DECLARED) - options()
    for file in (*ROOT.glob("reporters/html/assets/*.js"), *ROOT.glob("capabilities/*/*/*.js")):
        source = re.sub(r"/\*\*.*?\*/|//[^\n]*", "", file.read_text(), flags=re.DOTALL)
        for literal in re.findall(r"\[[^\[\]()]*\]|\{[^{}();]*: [^{}();]*\}", source):
            texts = re.findall(r'"(\w+)"|(\w+): ', literal)
            assert len(names & {name for pair in texts for name in pair}) <= MOST, (file.name, literal)


def test_no_module_is_loaded_by_string_but_plugins_and_the_packages_own_functions() -> None:
    """`lint-imports` does not see such imports, so that a circle could hide behind them."""
    for file in FILES:
        name = str(file.relative_to(ROOT))
        mentioned = set(re.findall(r'import_module\(f?"(hookcli\.[^"]*)"', file.read_text()))
        folder = f"hookcli.{'.'.join(file.relative_to(ROOT).parent.parts)}."
        assert name in BY_NAME or all(module.startswith(folder) for module in mentioned), name
        modules = {text.partition(":")[0] for node in nodes(file.read_text()) for text in texts([node])}  # type: ignore[list-item]
        known = {
            text
            for text in modules
            if text.startswith("hookcli.") and (ROOT.parent / f"{text.replace('.', '/')}.py").exists()
        }
        own = name.startswith("capabilities/") and all(text.startswith(folder) for text in known)  # a manifest
        assert name in BY_NAME or own or not known, name


def test_names_are_keys_and_titles_are_for_people() -> None:
    assert all(name.isidentifier() and name == name.lower() for name in DECLARED)
    assert DECLARED["hookcli_seconds"].title == "hookcli's own work"
