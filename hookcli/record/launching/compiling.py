"""Compiles a script from the bytes of its file, with the errors that `python` raises for files.

`compile` alone accepts bytes in comments that `python` refuses, and words encoding errors differently.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from types import CodeType

_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")  # PEP 263


def compiled(source: bytes, path: str) -> CodeType:
    """Compile a script. Raises SyntaxError as `python PATH` does."""
    first_lines = source.removeprefix(BOM_UTF8).split(b"\n", 2)[:2]
    cookie = next((found[1].decode() for line in first_lines if (found := _COOKIE.match(line))), None)
    if cookie is None:
        _refuse_other_than_utf8(source, path)
    try:
        return compile(source, path, "exec", dont_inherit=True)  # without hookcli's own `from __future__`
    except (SyntaxError, ValueError) as error:
        raised = _as_for_files(error, source, path, cookie)
    raise raised


def _refuse_other_than_utf8(source: bytes, path: str) -> None:
    wrong = None
    try:
        source.decode()
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong is not None:  # raised outside `except`: the script's SyntaxError has no context
        line = source.count(b"\n", 0, wrong) + 1
        raise SyntaxError(
            f"Non-UTF-8 code starting with '\\x{source[wrong]:02x}' in file {path} on line {line}, "
            "but no encoding declared; see https://peps.python.org/pep-0263/ for details"
        )


def _as_for_files(error: SyntaxError | ValueError, source: bytes, path: str, cookie: str | None) -> Exception:
    if b"\0" in source:
        before = source[: source.index(b"\0")]
        text = before.rpartition(b"\n")[2].decode(errors="replace")
        return SyntaxError("source code cannot contain null bytes", (path, before.count(b"\n") + 1, 0, text))
    if isinstance(error, SyntaxError) and error.lineno == 0:
        problem = f"encoding problem: {cookie}"
        return SyntaxError(error.msg if error.msg.startswith("encoding problem") else problem)
    return error
