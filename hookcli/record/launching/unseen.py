"""Says why a command would not load hookcli: its Python is told to ignore PYTHONPATH."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from shutil import which

_PYTHON = re.compile(r"python[\d.]*t?")
_IGNORE = {"I": "ignores PYTHONPATH", "E": "ignores PYTHONPATH", "S": "does not import sitecustomize"}
_TAKE_A_VALUE = "cmXW"


def why_unseen(argv: Sequence[str]) -> str:
    """Why a command's Python does not load hookcli, as `python -I` does not; empty if it does.

    Follows the `#!` line of scripts, and `env`.
    """
    words = list(argv)
    if (line := _interpreter(words[0])) is not None:
        words = [*line, *words]
    if Path(words[0]).name == "env":
        words = [word for word in words[1:] if "=" not in word and word not in ("-S", "-i")] or [""]
    if not _PYTHON.fullmatch(Path(words[0]).name):
        return ""
    option = _ignoring(words[1:])
    return f"{Path(words[0]).name} -{option} {_IGNORE[option]}" if option else ""


def _interpreter(command: str) -> list[str] | None:
    """The `#!` line of a script on PATH."""
    path = which(command)
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            line = file.readline(512)
    except OSError:
        return None
    return shlex.split(line[2:].decode(errors="replace")) if line.startswith(b"#!") else None


def _ignoring(options: Sequence[str]) -> str:
    """The option that keeps a Python from loading hookcli: I, E or S; empty if there is none."""
    words = iter(options)
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            return ""
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(words, None)
            continue
        for position, letter in enumerate(word[1:], 2):
            if letter in _IGNORE:
                return letter
            if letter in "cm":  # the program begins
                return ""
            if letter in _TAKE_A_VALUE:
                if position == len(word):
                    next(words, None)
                break
    return ""
