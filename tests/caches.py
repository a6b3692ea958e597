"""A cache folder for all tests: hookcli's own is new, other libraries' and its compiled hooks are the user's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_kept: list[tempfile.TemporaryDirectory[str]] = []  # until this process ends
_MADE = "HOOKCLI_TEST_CACHE"


def use_own() -> None:
    """Let this process, and those that it starts, use the tests' cache.

    No report is cached, since one that a test's patches have made would reach another test: `reports` is not a folder.
    """
    if _MADE in os.environ:  # pytest-xdist's main process has made it
        return
    _kept.append(tempfile.TemporaryDirectory(prefix="hookcli-cache-"))
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = os.environ["XDG_CACHE_HOME"] = os.environ[_MADE] = _kept[0].name
    (users / "hookcli" / "native").mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(own, "hookcli").mkdir()
    Path(own, "hookcli", "native").symlink_to(users / "hookcli" / "native")
    Path(own, "hookcli", "reports").touch()
    for folder in users.iterdir():
        if folder.name != "hookcli":
            Path(own, folder.name).symlink_to(folder)
