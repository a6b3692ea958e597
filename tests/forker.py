"""The servers of `forks`: processes that have imported torch, and fork for each job that comes by a socket.

One of them has imported hookcli, too: half of the time of a command is the import of its modules.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing.process
import multiprocessing.spawn
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import forks
from forks import NUMBER
from interpreter import end, streams

_EXECVPE = os.execvpe
_HIGH = 900  # above all numbers of files that a job names


def serve(listening: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each job; returns only in the child, with the job and its files. Ends when stdin does."""
    children: dict[int, socket.socket] = {}
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready = select.select([0, listening, ended], [], [])[0]
        if 0 in ready:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        if ended in ready:
            os.read(ended, 4096)
            while children and (gone := os.waitpid(-1, os.WNOHANG))[0]:
                with children.pop(gone[0]) as connection:
                    _tell(connection, gone[1])
        if listening in ready:
            connection, _ = listening.accept()
            job, files = _received(connection)
            pid = os.fork()
            if pid == 0:
                return job, files
            _tell(connection, pid)
            children[pid] = connection
            for number in files:
                os.close(number)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, files, _, _ = socket.recv_fds(connection, NUMBER.size, 64)
    text, left = b"", NUMBER.unpack(size)[0]
    while len(text) < left:
        text += connection.recv(left - len(text))
    return json.loads(text), files


def _tell(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # nobody waits for it any more
        connection.sendall(NUMBER.pack(number))


def become(job: dict[str, Any], files: list[int]) -> None:
    """In the child: what a new process of Python would find."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if job["session"]:
        os.setsid()
    theirs = [0, 1, 2, *job["kept"]]
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, _HIGH) for number in files]
    os.closerange(0, _HIGH)
    for number, copy in zip(theirs, high, strict=True):
        os.dup2(copy, number)
    os.closerange(_HIGH, _HIGH + 2 * len(high))
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    multiprocessing.process.ORIGINAL_DIR = job["folder"]  # where children look for the script
    _parent(job["parent"])
    if job["pid"] is not None:  # of the `python` that waits for this fork
        own, os.getpid = os.getpid, lambda: job["pid"]
        os.register_at_fork(after_in_child=lambda: setattr(os, "getpid", own))


def _parent(pid: int) -> None:
    """The one that asked stands for the parent, as long as it lives: the server is nobody's."""

    def found() -> int:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return 1
        return pid

    os.getppid = found


def run_main(argv: list[str]) -> None:
    """`python ARGV`."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kind, sys.argv, sys.orig_argv = argv[0], argv[1:], [sys.executable, *argv]
    sys.path[:] = [*map(os.path.abspath, given), *PATH]
    importlib.invalidate_caches()
    if "HOOKCLI_RUN" in os.environ:
        sys.modules.pop("sitecustomize", None)  # the distribution's: Debian's Python has one
        with suppress(ImportError):
            importlib.import_module("sitecustomize")
    sys.path.insert(0, "" if kind == "-c" else _here() if kind == "-m" else str(Path(kind).parent.resolve()))
    if kind == "-m":
        if sys.argv[0] != "hookcli":
            sys.modules.pop(sys.argv[0], None)
        runpy._run_module_as_main(sys.argv[0])
    elif kind == "-c":
        sys.argv[0], code = "-c", sys.argv[0]
        exec(compile(code, "<string>", "exec"), main.__dict__)
    else:
        main.__file__, sys.argv = kind, argv
        exec(compile(Path(kind).read_bytes(), kind, "exec"), main.__dict__)


def _here() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def run(argv: list[str]) -> NoReturn:
    """`python ARGV`, to its end."""
    raised: BaseException | None = None
    try:
        unbuffered = argv[0] == "-u"
        streams(unbuffered)
        run_main(argv[unbuffered:])
    except BaseException as error:
        raised = error
    end(raised, __file__)


def import_hookcli() -> None:
    """Import all of hookcli that needs no more libraries than torch, and is not the program itself."""
    import hookcli.table  # before the columns of capabilities, which it takes

    for module in pkgutil.walk_packages(hookcli.__path__, "hookcli."):
        if not re.search("__main__|pytest_plugin|integrations|kernels|_sums$|plot|explore.app", module.name):
            importlib.import_module(module.name)


def execute(file: str, argv: list[str], environment: dict[str, str]) -> NoReturn:
    """As `os.execvpe`: another `python` takes the place of this one, on top of it if it needs no new interpreter."""
    if not forks._understood(argv):
        _EXECVPE(file, argv, environment)
    os.environ.clear()
    os.environ.update(environment)
    atexit._clear()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_IGN)
    sys.excepthook = sys.__excepthook__
    run(argv[1:])


if __name__ == "__main__":
    count = len([path for path in os.environ.pop("PYTHONPATH", "").split(os.pathsep) if path])
    PATH = sys.path[1 + count :]
    import torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler as handler
    import torch.distributed.elastic.rendezvous.dynamic_rendezvous as rendezvous
    import torch.distributed.run
    import torchvision  # noqa: F401

    commands_import = ("pydantic", "rich.console", "rich.table", "typer.main", "typer._adapters")
    compile_imports = ("torch._dynamo.repro.after_dynamo", "torch._inductor.compile_fx")  # a second of each fork's
    for name in (*commands_import, *compile_imports):
        with suppress(ImportError):
            importlib.import_module(name)

    torch.set_num_threads(1)
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # PyTorch's, which take apart its operators
    subprocess.Popen = handler.Popen = forks.Popen  # type: ignore[misc]
    rendezvous.get_method_name = forks.method_name
    os.execvpe = execute  # type: ignore[assignment]
    multiprocessing.spawn.set_executable(forks.python())
    listening, second = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    if os.fork() == 0:
        listening = second
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import_hookcli()
        importlib.import_module("pytest")
        del sys.path[0]
    gc.freeze()  # a child that collects copies no page for it
    job, files = serve(listening)
    become(job, files)
    run(job["argv"])
