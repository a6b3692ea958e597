"""The C++ hooks need a compiler. Without one their tests are skipped, unless it is required, as in CI."""

from __future__ import annotations

import os

import pytest

from hookcli.hooks.native import build


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if build.compiler() is not None or os.environ.get("HOOKCLI_TEST_NATIVE") == "required":
        return
    for item in items:
        if "tests/hooks/native" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason="needs a C++ compiler"))
