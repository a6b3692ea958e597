"""Starts a program, and tells all of its processes through one environment variable how to record themselves."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import parent_process
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, Self

from hookcli.system.torchrun import run_name, world

VARIABLE = "HOOKCLI_RUN"
_BOOTSTRAP = str(Path(__file__).parent / "bootstrap")


@dataclass(frozen=True)
class Launched:
    """A program that `hookcli run` starts.

    `process` is its process id; `record` the path of its record, `named` if the user chose it; `name` and `argv` what
    was started, `module` with -m; `meant` is the command line if options of hookcli among `argv` were moved before it,
    "" if there are none; `plan` the settings of a RecordingPlan; `began` the start by `perf_counter`. `python`
    and `package` say where hookcli is: in which Python (its prefix and version), and in which file. `launch` names the
    program, or the ranks of one launcher, that a process belongs to; it is set in processes that have imported torch.
    """

    process: int  # the first field: see `_end` in sitecustomize.py
    record: str
    named: bool
    name: str
    argv: Sequence[str]
    plan: Mapping[str, Any]
    module: bool = False
    quiet: bool = False
    debug: bool = False
    meant: str = ""
    began: float = field(default_factory=perf_counter)
    python: Sequence[Any] = (sys.prefix, *sys.version_info[:2])
    package: str = str(Path(__file__).parents[2] / "__init__.py")
    launch: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The program, as the variable describes it. Raises TypeError if another version of hookcli wrote it."""
        return cls(**data)

    def joined(self) -> Self:
        """The program with the launch of this process, which its children will inherit; itself in a child.

        A process that a rank has started, without multiprocessing, is its child.
        """
        spawned = any(word.startswith("from multiprocessing.") for word in sys.orig_argv)
        if spawned and self.launch:
            return self
        parent = parent_process()  # of a child that was forked before torch was imported
        process = os.getppid() if spawned else parent.pid if parent else os.getpid()
        launch = run_name() if world().size > 1 else f"{self.process} {self.began} {process}"
        if launch == self.launch:
            return self
        joined = replace(self, launch=launch)
        os.environ[VARIABLE] = json.dumps(asdict(joined))
        return joined

    def search(self) -> str:
        """The command that stops this program at its first non-finite value."""
        return shlex.join(["hookcli", "run", "--first-bad", "stop", *(["-m"] if self.module else []), *self.argv])

    def environment(self) -> dict[str, str]:
        """The program's environment variables: the user's, and hookcli's two."""
        paths = [path for path in (_BOOTSTRAP, os.environ.get("PYTHONPATH")) if path]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: json.dumps(asdict(self))}


def become(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a program. Raises OSError if that can't be started.

    Python ignores two signals, which the program would inherit.
    """
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os.execvpe(argv[0], list(argv), dict(environment))
