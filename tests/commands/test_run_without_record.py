"""Where no record can be written the script runs all the same: its output, its exit code, and one line that tells."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest

from hookcli.record.file.writer import RecordWriter

SCRIPT = "import sys\nprint('ran', *sys.argv[1:])\nsys.exit(7)\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return path


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk(script: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(self: RecordWriter, line: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(RecordWriter, "write", full)
    ran = cli("run", str(script), "a")
    assert (ran.code, ran.out) == (7, "ran a\n")
    assert len(ran.err.splitlines()) == 1 and os.strerror(code) in ran.err and "the script runs" in ran.err
    assert list(Path.cwd().iterdir()) == []
    named = cli("run", "-o", "named.jsonl", str(script))
    assert (named.code, named.out) == (2, "") and "can't write named.jsonl" in named.err
    assert [path.name for path in Path.cwd().iterdir()] == ["named.jsonl"]  # it may have been a device


def test_a_read_only_folder(script: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(cls: type, folder: object, stem: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(RecordWriter, "numbered", classmethod(refused))
    ran = cli("run", str(script))
    assert (ran.code, ran.out) == (7, "ran\n") and "Permission denied" in ran.err


def test_a_folder_that_was_deleted(script: Path) -> None:
    program = (
        "import os, sys\n"
        "os.rmdir(os.getcwd())\n"
        "from hookcli.cli import main\n"
        f"sys.exit(main(['run', {str(script)!r}, 'a']))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ran = forks.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (ran.returncode, ran.stdout) == (7, "ran a\n"), ran.stderr
    assert len(ran.stderr.splitlines()) == 1 and "the script runs" in ran.stderr, ran.stderr
