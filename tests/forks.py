"""`subprocess` for tests: `python ...` as a fork of one process that has imported torch, which takes seconds.

    ran = forks.run([sys.executable, "-m", "hookcli", "shapes", "net.py:Net"], capture_output=True, text=True)

A fork has a process id, streams, environment, folder, session and signals of its own, and starts processes in the same
way. Its interpreter is not new: torch is there already, in hookcli's command line also hookcli's modules, PyTorch is
not taken apart at the end, and variables that Python reads when it starts change nothing, but for PYTHONPATH. Where
that matters, `fresh=True` is a new `python`, which is ended by SIGINT, SIGQUIT and SIGHUP, also where pytest's own
parent ignores them, as in the background of a script or under nohup; a fork is by SIGINT.
"""

from __future__ import annotations

import inspect
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

ADDRESS = "HOOKCLI_TEST_FORKS"
"""Where the server listens, in the environment of all that tests start."""
OF_HOOKCLI = "-hookcli"
"""The end of the address of the second server, which has imported hookcli, too, for hookcli's command line."""
_HEEDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
NUMBER = struct.Struct("q")
_started: list[Popen] | None = None  # by the test that runs
_servers: list[tuple[Any, Any]] = []  # one at most, and its folder, which end with this process
_ORDINARY = subprocess.Popen


def _make_pool() -> None:
    """In a fork PyTorch makes its thread pool anew at the first use: two threads of autograd that meet there abort."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(torch.get_num_threads())


os.register_at_fork(after_in_child=_make_pool)


class Popen(_ORDINARY[Any]):
    """A fork where the command is a `python` that needs no new interpreter, else as ever.

    It ends with the test that has started it, unless it is `kept` for others.
    """

    def __init__(self, *args: Any, fresh: bool = False, kept: bool = False, **options: Any) -> None:
        self._fresh, self._server = fresh, None
        super().__init__(*args, **options)
        if _started is not None and not kept:
            _started.append(self)

    def _execute_child(self, *args: Any) -> None:
        given = inspect.signature(_ORDINARY._execute_child).bind(self, *args)
        asked = given.arguments
        argv = [os.fspath(a) for a in asked["args"]] if isinstance(asked["args"], (list, tuple)) else []
        if self._fresh or not _understood(argv) or asked["preexec_fn"]:
            with _heeding_signals():
                _ORDINARY._execute_child(*given.args)
            return
        streams = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [own if given == -1 else given for own, given in enumerate(streams)]
        job = {
            "argv": argv[1:],
            "folder": os.fspath(asked["cwd"] or Path.cwd()),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]) | {ADDRESS: address()},
            "session": asked["start_new_session"],
            "kept": list(asked["pass_fds"]),
            "parent": os.getppid() if __name__ == "__main__" else os.getpid(),
            "pid": os.getpid() if __name__ == "__main__" else None,
        }
        server = address() + (OF_HOOKCLI if _is_hookcli(argv) else "")
        self._server = _asked(server, job, [*streams, *asked["pass_fds"]])
        self.pid = NUMBER.unpack(self._server.recv(NUMBER.size))[0]
        self._child_created = True
        self._close_pipe_fds(*(asked[n] for n in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))

    @property
    def sentinel(self) -> socket.socket:
        """Of a fork, what is ready when it has ended."""
        assert self._server is not None
        return self._server

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._server is None:
            return super()._try_wait(wait_flags)
        if wait_flags & os.WNOHANG and not select.select([self._server], [], [], 0)[0]:
            return 0, 0
        status = self._server.recv(NUMBER.size)
        self._server.close()
        return self.pid, NUMBER.unpack(status)[0] if status else signal.SIGKILL

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._server is None:
            return super()._internal_poll(*args, **options)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def __del__(self, *args: Any, **options: Any) -> None:
        """End without a fork: `subprocess` would keep one that nobody waited for, and later ask its closed socket."""
        if self.__dict__.get("_server") is None:
            super().__del__(*args, **options)


@contextmanager
def ended() -> Iterator[None]:
    """At the end of the block, end what was started in it and has not been waited for: an assertion may have failed."""
    global _started
    outer, _started = _started, (started := [])
    try:
        yield
    finally:
        _started = outer
        for process in started:
            if process.returncode is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def run(command: Any, fresh: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`."""
    with patch.object(subprocess, "Popen", Popen):
        return subprocess.run(command, fresh=fresh, **options)


def alone(call: str) -> None:
    """Call a function of a test's file, as "folder.test_file.function(1)", in a new process.

    PyTorch trains in no fork of a process that had autograd's threads, which other tests may have started.
    """
    module = call.partition("(")[0].rpartition(".")[0]
    code = f"import {module}; {call}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def python() -> str:
    """A `python` for what shells and multiprocessing start: each is a fork."""
    return str(Path(address()).with_name("python"))


def address() -> str:
    """The server's, which is started where there is none."""
    if ADDRESS not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="forks")
        os.environ[ADDRESS] = str(Path(folder.name, "server"))
        with open(python(), "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
            file.write(f'#!/bin/sh\nexec {sys.executable} -S -E {__file__} "$@"\n')
        with socket.socket(socket.AF_UNIX) as plain, socket.socket(socket.AF_UNIX) as with_hookcli:
            for listening, end in ((plain, ""), (with_hookcli, OF_HOOKCLI)):
                listening.bind(os.environ[ADDRESS] + end)
                listening.listen(64)
            numbers = [plain.fileno(), with_hookcli.fileno()]
            command = [sys.executable, str(Path(__file__).with_name("forker.py")), *map(str, numbers)]
            # Of memory in large pages, each fork copies a shorter table; it has an environment of its own.
            large = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
            server = _ORDINARY(command, stdin=subprocess.PIPE, pass_fds=numbers, start_new_session=True, env=large)
        _servers.append((server, folder))
    return os.environ[ADDRESS]


def method_name(depth: int = 2) -> str:
    """As torchrun's rendezvous has it for its log, without the source of all frames, which takes half a second."""
    return sys._getframe(depth).f_code.co_name


def _asked(server: str, job: dict[str, Any], numbers: list[int]) -> socket.socket:
    """A connection on which the server tells the process id and, at the end, the status."""
    connection, text = socket.socket(socket.AF_UNIX), json.dumps(job).encode()
    connection.connect(server)
    socket.send_fds(connection, [NUMBER.pack(len(text))], numbers)
    connection.sendall(text)
    return connection


def _understood(argv: list[str]) -> bool:
    """Whether it is this Python, with no options but `-u`, `-m` and `-c`."""
    what = argv[2:3] if argv[1:2] == ["-u"] else argv[1:2]
    return argv[:1] == [sys.executable] and bool(what) and (what[0] in ("-m", "-c") or what[0].endswith(".py"))


def _is_hookcli(argv: list[str]) -> bool:
    """True for hookcli's command line, and for a pytest with its plugin: both import hookcli before anything else."""
    what = argv[2:] if argv[1] == "-u" else argv[1:]
    if what[:2] == ["-m", "pytest"]:
        return "hookcli.pytest_plugin" in what
    return what[:2] == ["-m", "hookcli"] or (what[0] == "-c" and "from hookcli.__main__ import entry" in what[1])


@contextmanager
def _heeding_signals() -> Iterator[None]:
    """Ignore no signal in the block that a process which is started in it would ignore, too.

    No `preexec_fn` does it: with one, Python copies this large process instead of using `vfork`, in 40 ms each.
    """
    ignored = [each for each in _HEEDED if signal.getsignal(each) is signal.SIG_IGN]
    for each in ignored:
        signal.signal(each, signal.default_int_handler)  # in the process that is started, the usual one
    try:
        yield
    finally:
        for each in ignored:
            signal.signal(each, signal.SIG_IGN)


if __name__ == "__main__":  # `python()`, whose streams and other files the fork has, too
    inherited = [int(path.name) for path in Path("/proc/self/fd").iterdir() if path.exists() and int(path.name) > 2]
    sys.exit(Popen([sys.executable, *sys.argv[1:]], pass_fds=inherited).wait())
