"""Starts a program, and tells all of its processes through one environment variable how to record themselves."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, Self

from hookcli.registry.capability import search_words
from hookcli.system.torchrun import run_name, world

VARIABLE = "HOOKCLI_RUN"
_BOOTSTRAP = str(Path(__file__).parent / "bootstrap")


@dataclass(frozen=True)
class Launched:
    """A program that `hookcli run` starts.

    `process` is its process id; `record` the path of its record, `named` if the user chose it, `reserved` if an empty
    file keeps the name for it; `name` and `argv` what was started, `module` with -m; `meant` is the command line if
    options of hookcli among `argv` were moved before it, "" if there are none; `plan` the settings of a RecordingPlan;
    `began` the start by `perf_counter`. `python` and `package` say where hookcli is: in which Python (its prefix and
    version), and in which file. `launch` names the program, or the ranks of one launcher, that a process belongs to,
    and `joined_by` is the id of the process that the launch began with; both are set once torch is imported. `witness`
    is a file that any process of the program deletes if it can't record, which needs no room on a disk; "" for none.
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
    joined_by: int = 0
    reserved: bool = False
    witness: str = ""

    @property
    def is_child(self) -> bool:
        """True in a child of the process that the launch began with; False in a program that executes itself again."""
        return self.joined_by != os.getpid()

    def joined(self) -> Self:
        """The program with this process's launch, which its children inherit, or its parent's."""
        spawned = any(word.startswith("from multiprocessing.") for word in sys.orig_argv)
        if spawned and self.launch:
            return self
        from multiprocessing import parent_process

        parent = parent_process()  # of a child that was forked before torch was imported
        process = os.getppid() if spawned else (parent and parent.pid) or os.getpid()
        if world().size > 1:
            return self if self.launch == run_name() else self._told(run_name(), process)
        return self._told(f"{self.process} {self.began} {process}", process)

    def among_ranks(self, group: str) -> Self:
        """The program with the launch of this process's ranks, which have joined without torchrun.

        No parent tells them that they belong together, but the run and the name of their process group do; if that is
        not known, the launcher's variables.
        """
        launch = f"{self.process} {self.began} {group or run_name()}"
        return self if world().size > 1 else self._told(launch, self.joined_by)

    def of_environment(self) -> Self:
        """The program with the launch of the rank that has forked this process, which its environment tells."""
        text = os.environ.get(VARIABLE)
        return replace(self, launch=json.loads(text)["launch"]) if text else self

    def _told(self, launch: str, joined_by: int) -> Self:
        """The program with another launch, which the children of this process will inherit."""
        launched = replace(self, launch=launch, joined_by=joined_by)
        os.environ[VARIABLE] = json.dumps(asdict(launched))
        return launched

    def search(self) -> str:
        """The command that stops this program at its first non-finite value, and names the line that made it."""
        return shlex.join(["hookcli", "run", *search_words(), "--ops", *(["-m"] if self.module else []), *self.argv])

    def environment(self) -> dict[str, str]:
        paths = [path for path in (_BOOTSTRAP, os.environ.get("PYTHONPATH")) if path]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: json.dumps(asdict(self))}


def made_witness() -> str:
    """Make a file for `Launched.witness`; returns its path, or "" if none can be made."""
    with suppress(OSError):
        file, path = tempfile.mkstemp(prefix="hookcli-")
        os.close(file)
        return path
    return ""


def is_lost(witness: str) -> bool:
    """Delete the witness. Returns True if a process of the program has deleted it before."""
    with suppress(OSError):
        if witness:
            Path(witness).unlink()
        return False
    return True


def attended(witness: str, end: Callable[[], object]) -> tuple[int, int]:
    """Fork. Returns zeros in the child, which becomes the program; in this process its id and exit code, at its end.

    Signals reach the program as if this process were not there, and end this process as they end the program. Before
    that, `end` is called: a program that was killed has deleted nothing.
    """
    waited = {getattr(signal, name) for name in _WAITED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return 0, 0
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if hasattr(signal, "sigwaitinfo"):
            received = signal.sigwaitinfo(waited)
            number, of_kernel = received.si_signo, received.si_code > 0
        else:  # macOS
            number = signal.sigwait(waited)
            of_kernel = number in (signal.SIGINT, signal.SIGQUIT)
        if not of_kernel and number != signal.SIGCHLD:  # a terminal's Ctrl-C reaches both processes
            os.kill(child, number)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = os.waitstatus_to_exitcode(ended[1])
    end()
    if code < 0:
        is_lost(witness)
        with suppress(OSError):  # SIGKILL needs none
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return child, code


_WAITED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD")


def become(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a program, with signals that Python ignores reset. Raises OSError if it can't start."""
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os.execvpe(argv[0], list(argv), dict(environment))
