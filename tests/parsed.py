"""hookcli's sources, parsed once: the tests that walk through them run in one process."""

from __future__ import annotations

import ast
from functools import cache

import pytest

OF_SOURCES = [pytest.mark.xdist_group("sources"), pytest.mark.usefixtures("uncollected")]


@cache
def nodes(source: str) -> list[ast.AST]:
    """Return all nodes of a source, the module first."""
    return [*ast.walk(ast.parse(source))]
