"""Files by names that others give, and files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BLOCK = 1 << 20
# Not Path's methods: these raise for names that can't be (more than 255 bytes, a NUL), up to Python 3.13.


def is_file(name: str | Path) -> bool:
    """Whether there is a regular file of this name."""
    return os.path.isfile(name)  # noqa: PTH113


def is_folder(name: str | Path) -> bool:
    """Whether there is a folder of this name."""
    return os.path.isdir(name)  # noqa: PTH112


def exists(name: str | Path) -> bool:
    """Whether there is anything of this name."""
    return os.path.exists(name)  # noqa: PTH110


def is_stream(name: str | Path) -> bool:
    """Whether it is a pipe or a device: something that can't be replaced, only written to."""
    return exists(name) and not is_file(name) and not is_folder(name)


def followed(path: Path) -> Path:
    """The file that a symbolic link leads to; any other path as it is."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114


def is_pipe(name: str | Path) -> bool:
    """Whether it is a pipe (`<(...)`, or /dev/stdin after `|`), which can be read once."""
    with suppress(OSError, ValueError):
        mode = os.stat(name).st_mode  # noqa: PTH116
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False


@contextmanager
def at_rest(path: Path) -> Iterator[Path]:
    """The file, to be read as often as wanted while the block runs: of a pipe a copy of all that comes."""
    if not is_pipe(path):
        yield path
        return
    with _elsewhere() as copy:
        with path.open("rb") as pipe, copy.open("wb") as file:
            while block := pipe.read(_BLOCK):
                file.write(block)
        yield copy


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file for the block to write, which takes the place of `path` if the block ends well.

    After any exception `path` is as it was and the new file is gone. A file that is replaced keeps its mode, and its
    owner where that is allowed; a symbolic link stays one. A device or a named pipe gets what the file holds. Raises
    OSError.
    """
    if is_stream(path):
        with _elsewhere() as scratch:
            yield scratch
            with path.open("wb") as target:
                target.write(scratch.read_bytes())
        return
    real = followed(path)
    scratch = real.with_name(f".hookcli-{os.urandom(8).hex()}")  # not after `path`, whose name may be as long as can be
    os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield scratch
        _make_alike(scratch, real)
        scratch.replace(real)
    finally:
        scratch.unlink(missing_ok=True)  # unless it was moved


@contextmanager
def _elsewhere() -> Iterator[Path]:
    """A name in a folder of its own, which is gone after the block."""
    import tempfile  # takes long, for what is rare

    with tempfile.TemporaryDirectory(prefix="hookcli-") as folder:
        yield Path(folder, "output")


def _make_alike(scratch: Path, real: Path) -> None:
    """Give the new file the mode and the owner of the one that it replaces."""
    with suppress(FileNotFoundError):
        there = real.stat()
        with suppress(OSError):  # only an administrator may give files away
            os.chown(scratch, there.st_uid, there.st_gid)
        scratch.chmod(stat.S_IMODE(there.st_mode))
