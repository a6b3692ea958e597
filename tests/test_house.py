"""The ratchet: figures of the code's structure that may get better, and never worse (`scripts/house`)."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from textwrap import dedent
from unittest.mock import patch

import pytest
from parsed import OF_SOURCES

SCRIPTS = Path(__file__).parents[1] / "scripts"
with patch.object(sys, "path", [str(SCRIPTS), *sys.path]):
    import _house as house

pytestmark = OF_SOURCES
LIMITS = json.loads((SCRIPTS / "house.json").read_text())


@pytest.fixture(scope="module")
def measured() -> house.House:
    return house.measured()


def test_no_figure_gets_worse(measured: house.House) -> None:
    counts = measured.counts()
    worse = {name: counts[name] for name, limit in LIMITS.items() if counts[name] > limit}
    assert not worse, f"limits {LIMITS}; `scripts/house --complex` and `--names` list the places"


def test_decisions_inside_expressions_count(measured: house.House) -> None:
    """One for the function, `if`, `and`, `or` and the conditional expression each; two for the comprehension."""
    source = """
        def f(a, b):
            if a and b or not a:
                return [x for x in a if x]
            def inner():
                return 1 if a else 2
            return a if b else b
    """
    (function,) = ast.parse(dedent(source)).body
    assert isinstance(function, ast.FunctionDef) and house.decisions(function) == 7
    assert house.decisions(function) <= house.MOST_DECISIONS
    assert all(count > house.MOST_DECISIONS for count, _ in measured.complex_functions)


def test_imports_are_seen_at_any_depth_and_as_text() -> None:
    source = """
        import hookcli.errors
        def f():
            from hookcli.table import Row
            return "hookcli.commands.app:build_app", "hookcli shapes"
    """
    imported = house._imported(ast.walk(ast.parse(dedent(source))))
    assert imported == {"hookcli.errors", "hookcli.table", "hookcli.table.Row", "hookcli.commands.app"}


def test_what_a_manifest_comes_after_is_no_name_from_outside_and_its_other_strings_are() -> None:
    tree = ast.parse('CAPABILITY = Capability(name="other", after="one", summary="As `hookcli one`.", page="one")')
    for own, file, names in (("other", "__init__.py", 2), ("other", "probe.py", 3), ("", "__init__.py", 4)):
        found = house.House(["one", "other"])
        house._add_names(found, [*ast.walk(tree)], [""], house.PACKAGE / file, own)
        assert len(found.names_outside) == names
