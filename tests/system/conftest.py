"""The process that runs command lines with streams of every kind, and the folder in which it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import ForkServer
from system.stream_kinds import COMMANDS, NET


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "net.py").write_text(NET)
    (folder / "script.py").write_text("print('the script')\n")
    (folder / "saved.json").write_text(server.run(*COMMANDS["shapes"], folder=folder).out)
    return folder
