"""Looks up files by names from outside, and writes files whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hookcli.system import interrupts

SCRATCH = ".hookcli-"
"""The beginning of the name of a file that is being written."""
_BLOCK = 1 << 20
# Path's methods are not used: up to Python 3.13 they raise for impossible names (more than 255 bytes, a NUL).


def is_file(name: str | Path) -> bool:
    """Return whether a regular file of this name exists."""
    return os.path.isfile(name)  # noqa: PTH113


def is_folder(name: str | Path) -> bool:
    """Return whether a folder of this name exists."""
    return os.path.isdir(name)  # noqa: PTH112


def exists(name: str | Path) -> bool:
    """Return whether a file, folder, pipe or device of this name exists."""
    return os.path.exists(name)  # noqa: PTH110


def is_stream(name: str | Path) -> bool:
    """Return whether the name is that of a pipe or device, which can be written to but not replaced."""
    return exists(name) and not is_file(name) and not is_folder(name)


def followed(path: Path) -> Path:
    """Return the file that a symbolic link points to; any other path as it is."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114


def is_pipe(name: str | Path) -> bool:
    """Return whether the name is that of a pipe (`<(...)`, or /dev/stdin after `|`), which can be read only once."""
    with suppress(OSError, ValueError):
        mode = os.stat(name).st_mode  # noqa: PTH116
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False


@contextmanager
def at_rest(path: Path) -> Iterator[Path]:
    """Yield a file that can be read several times while the block runs: `path`, or a copy of a pipe's contents."""
    if not is_pipe(path):
        yield path
        return
    with _elsewhere() as copy:
        with path.open("rb") as pipe, copy.open("wb") as file:
            while block := pipe.read(_BLOCK):
                file.write(block)
        yield copy


@contextmanager
def replacing(path: Path, *, output: bool = True) -> Iterator[Path]:
    """Yield a new file for the block to write; it replaces `path` if the block ends without an exception.

    After any exception `path` is unchanged and the new file is deleted. The replacement keeps the old file's mode, and
    its owner if that is allowed; a symbolic link stays one. A device or named pipe gets the new file's contents. An
    `output` of the command is not put in place after an interrupt. Raises OSError.
    """
    if is_stream(path):
        with _elsewhere() as scratch:
            yield scratch
            with path.open("wb") as target:
                target.write(scratch.read_bytes())
        return
    real = followed(path)
    with scratch_beside(real) as scratch:
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield scratch
        _make_alike(scratch, real)
        if output:
            interrupts.finish()
        scratch.replace(real)


@contextmanager
def scratch_beside(real: Path) -> Iterator[Path]:
    """Yield a new name in the folder of `real`; a file or folder that has it is deleted after the block."""
    scratch = real.with_name(f"{SCRATCH}{os.urandom(8).hex()}")  # `real` may have the longest name allowed
    interrupts.scratch.add(scratch)  # until it is deleted
    try:
        yield scratch
    finally:
        interrupts.delete(scratch)


@contextmanager
def _elsewhere() -> Iterator[Path]:
    """Yield a path in a temporary folder, which is deleted after the block."""
    import tempfile  # slow to import, and rarely needed

    with tempfile.TemporaryDirectory(prefix="hookcli-") as folder:
        yield Path(folder, "output")


def _make_alike(scratch: Path, real: Path) -> None:
    """Give the new file the mode and owner of the file that it replaces."""
    with suppress(FileNotFoundError):
        there = real.stat()
        with suppress(OSError):  # only an administrator may give files away
            os.chown(scratch, there.st_uid, there.st_gid)
        scratch.chmod(stat.S_IMODE(there.st_mode))
