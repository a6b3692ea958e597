"""Blocks of code in the pages of the documentation: consoles with commands and their output, and Python.

A `console` block has commands after `$ `, each followed by its output, or by its first lines and `...`. The Python
blocks of a page are one program, in the order of the page; `<!-- python ... -->`, which no reader sees, may hold what
the page takes for granted.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "questions").glob("*.md")))
COLUMNS = 100
MORE = "...\n"
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```(?:console|sh|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
_INLINE = re.compile(r"`(hookcli [^`\n]+)`")
_PYTHON = re.compile(r"^(?:```|<!-- )python\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r"\b[\d.,]+\s+(?:min|s|ms|µs)\b")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_LAYOUT = re.compile(r"[\s─]+")
_ROUNDING = 1e-6
"""Below it, a figure is an error by rounding: other kernels make another one, and the ratios beside it follow."""

Run = Callable[..., Any]
"""`subprocess.run`, or what does the same faster."""


@dataclass(frozen=True)
class Said:
    """A command of a console block and the output below it."""

    command: str
    output: str

    def __str__(self) -> str:
        return f"$ {self.command}\n{self.output}"


def consoles(page: str) -> Iterator[tuple[str, list[Said]]]:
    """The console blocks of a page: the text of each, and its commands."""
    for block in _CONSOLE.finditer(page):
        parts = re.split(r"^\$ (.*)\n", block[1], flags=re.MULTILINE)[1:]
        yield block[1], [Said(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]


def commands(page: str) -> Iterator[str]:
    """The command lines of hookcli in a page, in blocks and within lines."""
    blocks = [block[1] for block in _SHELL.finditer(page)]
    rest = _SHELL.sub("", _PYTHON.sub("", page))
    for text in (*blocks, *_INDENTED.findall(rest)):
        for line in text.replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("$ ")
            if re.match(r"hookcli \S|torchrun .*-m hookcli ", words):
                yield words
    yield from (found for found in _INLINE.findall(rest) if not re.search(r"\.\.\.|COMMAND", found))


def python(page: str, wanted: Callable[[str], bool] = bool) -> str:
    """The Python of a page, or its `wanted` blocks, each line where it stands in the page, as errors shall say."""
    code = [""] * len(page.splitlines())
    for block in filter(lambda found: wanted(found[1]), _PYTHON.finditer(page)):
        first = page.count("\n", 0, block.start(1))
        lines = block[1].splitlines()
        code[first : first + len(lines)] = lines
    return "\n".join(code) + "\n" if any(code) else ""


def folder_of_examples(folder: Path) -> None:
    """Put the examples where the commands of the pages look for them."""
    if not (folder / "examples").exists():
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))


def run(command: str, folder: Path, runs: Run = subprocess.run) -> str:
    """Run a command line and return its stdout and stderr, interleaved as written."""
    hookcli, *arguments = shlex.split(command)
    if hookcli != "hookcli":
        raise ValueError(f"{command}: not a command of hookcli")
    paths = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
    environment = os.environ | {"COLUMNS": str(COLUMNS), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    environment.pop("FORCE_COLOR", None)
    done = runs(
        [sys.executable, "-m", "hookcli", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    lines = str(done.stdout).replace(f"{folder}{os.sep}", "").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def as_shown(old: str, new: str) -> str:
    """The new output, or as many of its first lines as the page shows of the old one before `...`."""
    lines = old.splitlines(keepends=True)
    return "".join(new.splitlines(keepends=True)[: len(lines) - 1]) + MORE if lines[-1:] == [MORE] else new


def same(old: str, new: str) -> bool:
    """True if two outputs say the same: the same words, and figures that differ by no more than machines do.

    Times are not compared; layout follows the figures.
    """
    new = as_shown(old, new)
    texts, figures = zip(*map(_figures, (old, new)), strict=True)
    return bool(texts[0] == texts[1]) and all(map(_close, *figures))


def _figures(output: str) -> tuple[str, list[tuple[float, bool]]]:
    """The words of an output, and its numbers, each with whether its line shows an error by rounding."""
    text = _TIME.sub("TIME", output)
    figures = []
    for line in text.splitlines():
        numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(line)]
        rounded = any(0 < abs(number) < _ROUNDING for number in numbers)
        figures += [(number, rounded) for number in numbers]
    return _LAYOUT.sub(" ", _NUMBER.sub("#", text)).strip(), figures


def _close(one: tuple[float, bool], other: tuple[float, bool]) -> bool:
    """True if two figures are within a tenth of each other, or, where rounding decides them, within a third."""
    (a, rounded), (b, also) = one, other
    return abs(a - b) <= max((0.35 if rounded and also else 0.1) * max(abs(a), abs(b)), 1e-3)
