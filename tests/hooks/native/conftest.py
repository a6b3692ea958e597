"""The C++ hooks need a compiler. Without one their tests are skipped, unless it is required, as in CI.

One worker runs them all: the others need not wait for the build.
"""

from __future__ import annotations

import os

import pytest

from hookcli.hooks.native import build


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = build.compiler() is None and os.environ.get("HOOKCLI_TEST_NATIVE") != "required"
    mark = pytest.mark.skip(reason="needs a C++ compiler") if missing else pytest.mark.xdist_group("native")
    for item in items:
        if "tests/hooks/native" in item.path.as_posix():
            item.add_marker(mark)
