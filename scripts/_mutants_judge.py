"""Judges of mutants: copies of the working tree, each with a process that has collected its tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _mutants import Drawn
from _mutants_calls import LOG
from _mutants_worker import SOCKET

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "mutants"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", "--tb=no")


class Copy:
    """A copy of the working tree, with what was built, in which tests run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        paths = os.pathsep.join((str(root), str(root / "scripts")))
        self.environment = os.environ | {"PYTHONPATH": paths, LOG: str(KEPT)}
        listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
        for path in (*(ROOT / name for name in listed.splitlines()), *ROOT.glob("hookcli/**/*.so")):
            if path.is_file():
                self.place(path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, self.place(path))

    def place(self, path: Path) -> Path:
        return self.root / path.relative_to(ROOT)


class Judge:
    """A process that has collected the tests of a copy, and forks for each mutant."""

    def __init__(self, root: Path) -> None:
        self.copy = Copy(root)
        self._changes = 0
        self._unsound: set[str] = set()
        self._sound: set[str] = set()
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        environment = self.copy.environment | {SOCKET: str(theirs.fileno())}
        self._process = subprocess.Popen(
            [*PYTEST, "-n0", "-p_mutants_worker"], cwd=self.copy.root, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        self._socket, self._lines = ours, ours.makefile("r")
        if not self._lines.readline():
            raise SystemExit("pytest collects no tests in a copy of the working tree")

    def end(self) -> None:
        self._socket.close()
        self._lines.close()
        self._process.kill()
        self._process.wait()

    def judged(self, mutant: Drawn, tests: Sequence[str], seconds: float) -> str:
        """The test that fails with this change, though not without it; "" where none does."""
        tests = [test for test in tests if test not in self._unsound]
        place = self.copy.place(mutant.path)
        try:
            self._changes += 1
            place.write_text(mutant.mutant.applied()[0])
            os.utime(place, (self._changes, self._changes))  # no compiled file of an earlier change has this time
            killer = self._asked(place, mutant.line, tests, seconds)
            anew = killer is None
            if killer is None:
                killer = self._anew(tests, seconds)
            elif killer in tests and self._asked(place, mutant.line, [killer], seconds) == "":
                self._unsound.add(killer)  # it fails now and then
        finally:
            shutil.copy2(mutant.path, place)
        if not killer:
            return ""
        suspects = [killer] if killer in tests else tests
        if killer not in self._sound and killer not in self._unsound:
            passes = self._anew(suspects, seconds) if anew else self._asked(Path(), 0, suspects, seconds)
            if passes != "":
                self._unsound |= {killer}
            elif killer in tests:
                self._sound.add(killer)
        if killer not in self._unsound:
            return killer
        return self.judged(mutant, tests, seconds) if killer in tests else ""

    def _asked(self, place: Path, line: int, tests: Sequence[str], seconds: float) -> str | None:
        job = {"path": str(place) if line else "", "line": line, "tests": tests, "seconds": seconds}
        self._socket.sendall(json.dumps(job).encode() + b"\n")
        answer = self._lines.readline()
        if not answer:  # the change has ended the one that judges
            self.end()
            self._start()
            return "the process ended"
        return json.loads(answer)  # type: ignore[no-any-return]

    def _anew(self, tests: Sequence[str], seconds: float) -> str:
        """As judged by a new process, for changes that an import makes."""
        command = [*PYTEST, "-n0", "-x", "-rfE", *tests]
        try:
            ran = subprocess.run(
                command, cwd=self.copy.root, env=self.copy.environment, text=True, capture_output=True,
                timeout=60 + seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "time"
        if not ran.returncode:
            return ""
        failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", ran.stdout, re.MULTILINE)
        return failed[0] if failed else f"exit code {ran.returncode}"
