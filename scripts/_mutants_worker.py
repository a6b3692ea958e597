"""A plugin of pytest that judges mutants: it collects all tests once, and then forks for each mutant.

The fork gives the functions in memory the code of the changed file, runs the tests that it is told, and ends: none of
them imports anything anew. Files that only an import reads again (constants, and functions that something has read as
text) are for a new process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

SOCKET = "HOOKCLI_MUTANTS_SOCKET"
_functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)


def pytest_runtestloop(session: Any) -> bool:
    """Answer jobs, a line of JSON each, until there are no more."""
    import forks

    forks.address()  # one server for all children
    for found in gc.get_objects():
        if type(found) is FunctionType and "/hookcli/" in found.__code__.co_filename:
            code = found.__code__
            _functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(found)
    gc.collect()
    gc.freeze()
    items = {item.nodeid: item for item in session.items}
    with socket.socket(fileno=int(os.environ[SOCKET])) as connection, connection.makefile("r") as jobs:
        connection.sendall(b'"ready"\n')
        for line in jobs:
            connection.sendall(json.dumps(_in_a_child(json.loads(line), session, items)).encode() + b"\n")
    return True


def _in_a_child(job: dict[str, Any], session: Any, items: dict[str, Any]) -> str | None:
    """The test that fails, "" if none does; "time" if they take too long, None if a new process must judge."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        answer: str | None = "the process ended"
        try:
            answer = _judged(job, session, [items[test] for test in job["tests"] if test in items])
        finally:
            os.write(theirs, json.dumps(answer).encode())
            os._exit(0)
    os.close(theirs)
    until = time.monotonic() + job["seconds"]
    while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.01)
    if not ended[0]:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with open(ours, "rb") as pipe:  # noqa: PTH123
        os.set_blocking(ours, False)  # a process that a test has left may hold the other end
        said = pipe.read() or b""
    if said:
        return json.loads(said)  # type: ignore[no-any-return]
    return "the process ended" if ended[0] else "time"


def _judged(job: dict[str, Any], session: Any, items: list[Any]) -> str | None:
    if job["path"] and not _change(Path(job["path"]), job["line"]):
        return None
    failed: list[str] = []

    class Listener:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                failed.append(report.nodeid)

    session.config.pluginmanager.register(Listener())
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if failed:
            return failed[0]
    return ""


def _change(path: Path, line: int) -> bool:
    """Give the functions around a line of this file the code that stands there now; True if that is possible."""
    if str(path) not in {getattr(module, "__file__", None) for module in list(sys.modules.values())}:
        return True  # whoever imports it finds the change
    new = compile(path.read_text(), str(path), "exec", dont_inherit=True)
    for code in _outermost(new):
        lines = [number for _, _, number in _all_lines(code) if number]
        if code.co_firstlineno <= line <= max(lines):
            found = _functions.get((str(path), code.co_qualname, code.co_firstlineno), [])
            return bool(found) and _put(found[0].__code__, code)
    return False


def _outermost(code: CodeType) -> Iterator[CodeType]:
    """The functions and methods in the code of a module."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & 2:  # CO_NEWLOCALS: a function, no class
                yield part
            else:
                yield from _outermost(part)


def _all_lines(code: CodeType) -> Iterator[tuple[int, int, int | None]]:
    yield from code.co_lines()
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _all_lines(part)


def _put(old: CodeType, new: CodeType) -> bool:
    """Replace code, and the functions within it, in all functions that have it."""
    for function in _functions.get((old.co_filename, old.co_qualname, old.co_firstlineno), []):
        if len(new.co_freevars) != len(function.__code__.co_freevars):
            return False
        function.__code__ = new
    inner = ([part for part in code.co_consts if isinstance(part, CodeType)] for code in (old, new))
    return all(_put(*pair) for pair in zip(*inner, strict=False))
