"""Users' files in a folder, and commands that are typed there as processes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import forks
from record.launching.support import ENV

USERS = Path(__file__).parent / "users"


@dataclass(frozen=True)
class Answer:
    """The output of a command: the report is on stdout, the messages of `run` on stderr."""

    code: int
    out: str
    err: str

    @property
    def first(self) -> str:
        """The first line of the report."""
        return self.out.splitlines()[0]

    @property
    def next(self) -> str:
        """The command that the last line suggests."""
        found = re.search(r"(?:Next: |`)(hookcli [^`]+?)(?:`.*)?$", (self.out or self.err).splitlines()[-1])
        assert found is not None, self.out + self.err
        return found[1]

    def row(self, name: str) -> str:
        """The row of a layer, by what its name ends with."""
        return next(line for line in self.out.splitlines() if line.split()[:1] == [name])


@dataclass(frozen=True)
class Asker:
    """Types commands in a folder that has the users' files."""

    folder: Path

    def __call__(self, command: str, *, code: int = 0, **environment: str) -> Answer:
        words = shlex.split(command)
        assert words[0] == "hookcli"
        ran = forks.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env={**ENV, "PATH": os.environ["PATH"], **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return Answer(ran.returncode, ran.stdout, ran.stderr)

    def copy(self, name: str, to: str, *changes: tuple[str, str]) -> None:
        """Write a user's file under another name, with each text replaced."""
        text = (self.folder / name).read_text()
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        (self.folder / to).write_text(text)


def settled(tmp_path: Path) -> Asker:
    """A folder with a copy of all users' files."""
    shutil.copytree(USERS, tmp_path, dirs_exist_ok=True)
    return Asker(tmp_path)
