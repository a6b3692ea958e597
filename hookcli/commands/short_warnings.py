"""Warnings while a model is built and run: each kind once, as one line that names the line of the model's code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

import hookcli
from hookcli.commands.options import Options
from hookcli.commands.output import remark


@contextmanager
def short_warnings(options: Options) -> Iterator[None]:
    """Warnings as one line each, and each kind once: a text of the model's own code, or a line of PyTorch.

    A warning of PyTorch's names the line of the model that led there; without one it comes with --debug alone.
    """
    seen = set[tuple[object, ...]]()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = f"warning: {category.__name__}: {str(message).strip().partition(chr(10))[0]}"
        own = not filename.startswith(_HOOKCLI) and not _is_torchs(filename)
        place = f"{Path(filename).name}:{lineno}" if own else _line_that_led_here(sys._getframe(1))
        kind = (filename, lineno, text if own else category)
        if place and kind not in seen:
            seen.add(kind)
            remark(f"{text} (at {place})", options)

    with warnings.catch_warnings():
        if not options.debug:
            warnings.showwarning = show
        yield


_HOOKCLI = str(Path(hookcli.__file__).parent) + os.sep
_WATCHING = str(Path(_HOOKCLI, "hooks")) + os.sep  # what is called there is the model's call
_STANDARD = str(Path(os.__file__).parent) + os.sep
_INSTALLED = ("site-packages", "dist-packages")  # folders of packages, which may be in the standard library's


def _is_torchs(filename: str) -> bool:
    """True for a file of PyTorch or torchvision."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "torchvision"))
    return filename.startswith(tuple(str(Path(file).parent) + os.sep for file in files if file))


def _line_that_led_here(frame: FrameType | None) -> str:
    """The innermost line, as net.py:12, that is not PyTorch's or Python's own; "" if it is hookcli's, or none.

    What sees the calls of functions, around them, does not count.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        standard = name.startswith(("<", _STANDARD)) and not any(folder in name for folder in _INSTALLED)
        passes_on = standard or name.startswith(_WATCHING) or Path(name).name == "typing_extensions.py"
        if not (passes_on or _is_torchs(name)):
            return "" if name.startswith(_HOOKCLI) else f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
