"""Ctrl-C in a process of hookcli's own: an interrupt is noted when it comes, whatever becomes of its exception.

An import that is cut short turns a KeyboardInterrupt into an ImportError, a library's `except` turns it into another
error, and callbacks of weak references drop it. So the command line asks `came` at the end, whatever exception it
got, and an interrupt that was dropped is raised again. Only `python -m hookcli` handles SIGINT, never the library; a
program that is recorded handles its own, until it is over (`ignored`).
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from hookcli.errors import INTERRUPTED
from hookcli.system.streams import say
from hookcli.system.torchrun import LAUNCHER

T = TypeVar("T")
_HEEDS = 0.1  # seconds until an interrupt is heeded that came to another thread
_AGAIN = 1.0  # seconds until an interrupt that was dropped is raised again


class _Interrupts:
    """Handler of SIGINT in this process: raises `make()` at the first Ctrl-C, and ends the process at the second."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.rank = LAUNCHER in os.environ
        self.make: Callable[[], BaseException] = KeyboardInterrupt
        self.raised: BaseException | None = None
        self.again = False
        self.final = False  # an output file has been put in its place
        self.waits = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT. A rank gets it twice: from the terminal, and from its launcher, which soon ends the rank."""
        if os.getpid() != self.process:  # a fork, such as a worker that loads data
            raise KeyboardInterrupt
        again, self.again = self.again, False
        error = sys.exception()
        while error is not None and error is not self.raised:
            error = error.__context__
        # In an `except`, a `finally` or an `__exit__` that the interrupt has led to, it is not raised again.
        if again and (self.final or self.waits or error is not None):
            return
        if not again and self.raised:
            if self.rank:
                return
            end(INTERRUPTED)
        if not again:
            _thread.start_new_thread(self._insist, ())  # a Thread takes locks, which this thread may hold
        self.raised = self.make()
        if not (self.final or self.waits):
            raise self.raised

    def _insist(self) -> None:
        """Raise the interrupt again, from time to time, until the command ends."""
        while True:
            time.sleep(_AGAIN)
            if not _heeded():
                return
            self.again = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


_interrupts = _Interrupts()
scratch: set[Path] = set()
"""Files and folders that no process should leave behind, also where `end` ends it."""


def heed() -> None:
    """Handle Ctrl-C from now on."""
    global _interrupts
    _interrupts = _Interrupts()
    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda error: None if came() and error.exc_type is KeyboardInterrupt else unraisable(error)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # last of all: Python then takes its handlers away
    signal.signal(signal.SIGINT, _interrupts)


def _heeded() -> bool:
    return signal.getsignal(signal.SIGINT) is _interrupts


def came(error: BaseException | None = None) -> bool:
    """Return whether a Ctrl-C has come in time to end the command, or this error of the command is one."""
    noted = _interrupts.raised is not None and not _interrupts.final
    return noted or isinstance(error, KeyboardInterrupt)


def over(code: int) -> None:
    """Call when the command has ended with this exit code: from now on Ctrl-C ends the process with it at once."""
    if _heeded():
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))


def finish() -> None:
    """Call before an output file is moved into place. Raises an earlier interrupt; a later one is ignored."""
    before, _interrupts.final = _interrupts.final, True
    if _interrupts.raised and not before:
        _interrupts.final = False
        raise _interrupts.raised


@contextmanager
def waiting() -> Iterator[None]:
    """Let an interrupt wait for the end of the block, whose C++ ends the process if a callback raises."""
    _interrupts.waits = True
    try:
        yield
    finally:
        _interrupts.waits = False
    if _interrupts.raised and not _interrupts.final:
        raise _interrupts.raised


@contextmanager
def raising(make: Callable[[], BaseException]) -> Iterator[None]:
    """Have an interrupt raise this exception in the block, for a library that expects its own."""
    before, _interrupts.make = _interrupts.make, make
    try:
        yield
    finally:
        _interrupts.make = before


def interruptible(run: Callable[[], T], stop: Callable[[], object]) -> T:
    """The result of C++ that hears no Ctrl-C: it runs in another thread, and `stop` makes it end soon."""
    from concurrent.futures import ThreadPoolExecutor, wait

    with ThreadPoolExecutor(1) as thread:
        try:
            running = thread.submit(run)
            while not wait([running], _HEEDS).done:
                pass  # now Python heeds a signal that the other thread got
            return running.result()
        finally:
            stop()


@contextmanager
def ignored() -> Iterator[None]:
    """Ignore Ctrl-C in the block, as the record of a program that is over is ended: it would be lost."""
    main = threading.current_thread() is threading.main_thread()  # no other may set a handler
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if before is not None:  # None is a handler that Python did not set
            signal.signal(signal.SIGINT, before)


def delete(path: Path) -> None:
    """Delete a scratch file or folder, if it is still there."""
    if path.is_dir():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    scratch.discard(path)


def end(code: int) -> NoReturn:
    """End the process at once; scratch files go."""
    with suppress(BaseException):
        if code == INTERRUPTED:
            say("interrupted")
        for path in [*scratch]:
            delete(path)
    os._exit(code)
