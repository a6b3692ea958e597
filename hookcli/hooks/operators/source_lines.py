"""Finds the line of the program that called a function."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType

import torch

from hookcli import errors
from hookcli.hooks.origin import shown_path

_OURS = str(Path(errors.__file__).parent) + os.sep
_HOOKS = str(Path(errors.__file__).parent / "hooks") + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
_STDLIB = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")


_FSDP = str(Path(torch.__file__).parent / "distributed") + os.sep
_CHECKPOINT = str(Path(torch.__file__).parent / "utils" / "checkpoint.py")
_MODULE = str(torch.nn.modules.module.__file__)


def called_by_pytorch(takes_tensors: bool) -> bool:
    """True for a call by the hooks in which FSDP gathers and frees parameters, or for what checkpointing itself makes.

    Checkpointing calls the model's functions, too: these take tensors.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, _TORCH)):
        name = frame.f_code.co_filename
        if name.startswith(_FSDP) or (name == _CHECKPOINT and not takes_tensors):
            return True
        if name == _MODULE:
            break
        frame = frame.f_back
    return False


class SourceLines:
    """Finds the line of the program that called a function. What is known of a frame's code is kept."""

    def __init__(self) -> None:
        self._codes: list[CodeType] = []  # kept alive for their ids: equal code may be of another file
        self._files: dict[int, tuple[str, bool]] = {}

    def caller(self, frame: FrameType | None = None) -> str:
        """The innermost line outside of PyTorch, hookcli and the standard library, as `file:line`.

        A model that is PyTorch's alone has no such line: the innermost one in PyTorch stands for it. The search begins
        at `frame`, or where this is called, below hookcli's own frames, and ends at those in which hookcli runs the
        model.
        """
        frame = frame or sys._getframe(1)
        while frame is not None and not self._file(frame.f_code)[0]:
            frame = frame.f_back
        otherwise = ""
        while frame is not None:
            path, programs = self._file(frame.f_code)
            if programs and path:
                return f"{path}:{frame.f_lineno}"
            if not (programs or path):
                break
            if path and Path(path).name != "overrides.py":  # there PyTorch passes calls on to modes
                otherwise = otherwise or f"{path}:{frame.f_lineno}"
            frame = frame.f_back
        return otherwise

    def _file(self, code: CodeType) -> tuple[str, bool]:
        """The path of a frame's code, "" for hookcli's, and whether it is the program's own, or one of our modes'."""
        file = self._files.get(id(code))
        if file is None:
            name = code.co_filename
            self._codes.append(code)
            if name.startswith(_OURS):
                file = "", name.startswith(_HOOKS)
            else:  # the program's own, or of a library that is not PyTorch's
                built_in = name.startswith(_STDLIB) and not any(folder in name for folder in _INSTALLED)
                file = shown_path(name), not (built_in or name.startswith((_TORCH, "<frozen ")))
            self._files[id(code)] = file
        return file
