"""Reads Python's own options in command lines, some of which keep it from loading hookcli."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from hookcli.system.files import opened

_PYTHON = re.compile(r"python[\d.]*t?")
_IGNORE = {"-I": "ignores PYTHONPATH", "-E": "ignores PYTHONPATH", "-S": "does not import sitecustomize"}


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
    option = next((option for option in python_options(words[1:]) if option in _IGNORE), None)
    return f"{Path(words[0]).name} {option} {_IGNORE[option]}" if option else ""


def _interpreter(command: str) -> list[str] | None:
    path = which(command)
    if path is None:
        return None
    try:
        with opened(path) as file:
            line = file.readline(512)
    except OSError:
        return None
    return shlex.split(line[2:].decode(errors="replace")) if line.startswith(b"#!") else None


def python_options(arguments: Sequence[str]) -> list[str]:
    """Python's own options among its arguments, one by one: -I, -X and dev of `python -IXdev train.py`."""
    options: list[str] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            options += [word, next(words, "")] if word == "--check-hash-based-pycs" else [word]
            continue
        for position, letter in enumerate(word[1:], 2):
            if letter in "cm":  # the program begins
                return options
            options.append(f"-{letter}")
            if letter in "XW":
                options.append(word[position:] or next(words, ""))
                break
    return options
