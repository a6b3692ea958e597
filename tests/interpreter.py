"""A start and an end as those of a new interpreter, for the children of `forker`."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn


def streams(unbuffered: bool) -> None:
    """Python's own, as it makes them when it starts."""
    for number, name, errors in ((0, "stdin", "strict"), (1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        stream: Any = None
        with suppress(OSError):  # closed
            os.fstat(number)
            stream = open(number, "w" if number else "r", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        if number and stream is not None:
            stream.reconfigure(line_buffering=number == 2 or os.isatty(number), write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def end(error: BaseException | None, below: str) -> NoReturn:
    """What Python does at its end, but for taking PyTorch apart, which takes a second: threads, exit handlers, streams.

    As CPython's `Py_RunMain`, `Py_FinalizeEx` and `flush_std_files` have it, with the exit code of a stream that can't
    be flushed. Frames of the file `below`, which began the program, are not shown.
    """
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = _asked_for(error.code)
    elif error is not None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == below:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            code = 120
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _asked_for(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1
