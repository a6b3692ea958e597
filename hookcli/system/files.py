"""Looks up files by names from outside, reads only what is a file and ends, and writes files whole or not at all.

Every read goes through `opened`, `content` or `regular` (a test finds any that does not): a name may belong to a
device that never ends, of a pipe that nobody writes to, or of a link that somebody else has put there.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hookcli.errors import UsageError, nearest
from hookcli.system import interrupts

SCRATCH = ".hookcli-"
"""The beginning of the name of a file that is being written."""
LARGEST = 2**29
"""Bytes of the largest text that is read into memory whole: a report of millions of rows."""
_LARGEST_PIPE = 2**32  # bytes of the largest copy of a pipe, which may be a record
_PATIENCE = 10.0  # seconds in which a program must open a named pipe to write
_BLOCK = 1 << 20
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)  # Windows has no such pipes
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


def near_files(path: Path, suffix: str = ".py", holds: str = "", prefix: str = "") -> str:
    """A suggestion for a path that does not exist: the files beside it, or folders that hold a file, named alike."""
    try:
        alike = [one for one in path.parent.iterdir() if one.suffix == suffix]
        beside = [one.name for one in alike if not holds or is_file(one / holds)]
    except OSError:
        return ""
    near = nearest(path.name, beside)
    return f"; did you mean {' or '.join(f'{prefix}{path.with_name(name)}' for name in near)}?" if near else ""


def nearest_file(name: str) -> str:
    """The file beside a path that does not exist, of its suffix, whose name is nearest to it; "" if none is alike."""
    path = Path(name)
    try:
        stems = [one.stem for one in path.parent.iterdir() if one.suffix == path.suffix]
    except OSError:
        return ""
    return next((str(path.with_name(stem + path.suffix)) for stem in nearest(path.stem, stems)), "")


def is_stream(name: str | Path) -> bool:
    """Return whether the name belongs to a pipe or device, which can be written to but not replaced."""
    return exists(name) and not is_file(name) and not is_folder(name)


def followed(path: Path) -> Path:
    """Return the file that a symbolic link points to; any other path as it is."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114


def is_pipe(name: str | Path) -> bool:
    """Return whether the name belongs to a pipe (`<(...)`, or /dev/stdin after `|`), which can be read only once."""
    with suppress(OSError, ValueError):
        mode = os.stat(name).st_mode  # noqa: PTH116
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False


def relative(path: str | Path) -> str:
    """Return a path relative to the working directory, which the program may have deleted, or in full."""
    with suppress(OSError, ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


def regular(path: str | Path, within: str | Path | None = None) -> Path:
    """Return the path of a regular file, for a library that opens files by name.

    A link that the user named may lead anywhere; one inside `within`, a folder that others may have filled, must not
    lead out of it. Raises OSError, whose `strerror` says what is there instead, also for names that no file can have.
    """
    try:
        if within is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(within)):
            raise OSError(errno.EXDEV, f"a link that leads out of {within}", str(path))
        _require_regular(os.stat(path), path)  # noqa: PTH116 - before it is opened, which does something to a device
    except ValueError as error:
        raise OSError(errno.EINVAL, "no name of a file", str(path)) from error
    return Path(path)


def opened(path: str | Path, within: str | Path | None = None, buffering: int = -1) -> Any:
    """Open a `regular` file for reading bytes, without ever waiting for somebody who writes. Raises OSError."""
    without_waiting = lambda name, flags: os.open(name, flags | _NONBLOCK)  # noqa: E731
    file = open(regular(path, within), "rb", buffering, opener=without_waiting)  # noqa: SIM115
    try:
        _require_regular(os.fstat(file.fileno()), path)  # by now it may be another
    except OSError:
        file.close()
        raise
    return file


def content(path: str | Path, most: int = LARGEST, within: str | Path | None = None) -> bytes:
    """Return the bytes of a `regular` file, or of a pipe that the user has named. Raises OSError above `most`."""
    if within is None and is_pipe(path):
        return b"".join(_bounded(_piped(path), most))
    with opened(path, within, buffering=0) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise too_large(most)
        return b"".join(_bounded(iter(lambda: file.read(_BLOCK), b""), most))


def unzipped(packed: bytes | memoryview, most: int = LARGEST) -> bytes:
    """Return what zlib has packed. Raises ValueError for a damaged text, and for one of more than `most` bytes."""
    unzip = zlib.decompressobj()
    try:
        text = unzip.decompress(packed, most)
    except zlib.error as error:
        raise ValueError(f"damaged: {error}") from error
    if not unzip.eof:
        raise ValueError("damaged, or too large")
    return text


def member(archive: Any, name: str, most: int = LARGEST) -> bytes:
    """Return a file of a ZipFile. Raises OSError beyond `most` bytes, and whatever zipfile does for a damaged one."""
    with archive.open(name) as file:
        return b"".join(_bounded(iter(lambda: file.read(_BLOCK), b""), most))


@contextmanager
def at_rest(path: Path) -> Iterator[Path]:
    """Yield a file that can be read several times while the block runs: `path`, or a copy of a pipe's contents.

    Raises UsageError for a pipe that can't be copied.
    """
    if not is_pipe(path):
        yield path
        return
    with _elsewhere() as copy:
        try:
            with copy.open("wb") as file:
                for block in _bounded(_piped(path), _LARGEST_PIPE):
                    file.write(block)
        except OSError as error:
            raise UsageError(f"{path}: can't be read ({error.strerror})") from error
        yield copy


def too_large(most: int) -> OSError:
    """Return the error for something of more than `most` bytes."""
    return OSError(errno.EFBIG, f"larger than {most / 2**20:,.0f} MiB, the most that is read")


def _require_regular(status: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise OSError(errno.EINVAL, f"{kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, not a file", str(path))


def _bounded(blocks: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Yield the blocks. Raises OSError once they are more than `most` bytes."""
    size = 0
    for block in blocks:
        size += len(block)
        if size > most:
            raise too_large(most)
        yield block


def _piped(path: str | Path) -> Iterator[bytes]:
    """Yield the blocks of a pipe until its writers have closed it. Raises OSError if a named one has no writer."""
    import select  # of a terminal's or a shell's pipe only

    file = os.open(path, os.O_RDONLY | _NONBLOCK)
    begin, written = time.monotonic(), not exists(os.path.realpath(path))  # one without a name has, or had, a writer
    try:
        while True:
            try:
                block = os.read(file, _BLOCK)
            except BlockingIOError:  # there is a writer
                select.select([file], [], [])
                written = True
                continue
            if block:
                written = True
                yield block
            elif written:
                return
            elif time.monotonic() > begin + _PATIENCE:
                raise OSError(errno.ENXIO, "a pipe that no program writes to", str(path))
            else:
                time.sleep(0.02)
    finally:
        os.close(file)


@contextmanager
def replacing(path: Path, *, output: bool = True) -> Iterator[Path]:
    """Yield a new file for the block to write; it replaces `path` if the block ends without an exception.

    After any exception `path` is unchanged and the new file is deleted. The replacement keeps the old file's mode, and
    its owner if that is allowed; a symbolic link stays one, and a device or named pipe gets the new file's contents.
    An `output` of the command is not put in place after an interrupt; any other file replaces whatever has its name,
    links too. Raises OSError.
    """
    if output and is_stream(path):
        with _elsewhere() as scratch:
            yield scratch
            with path.open("wb") as target, opened(scratch) as file:
                target.writelines(iter(lambda: file.read(_BLOCK), b""))
        return
    real = followed(path) if output else path
    with scratch_beside(real) as scratch:
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield scratch
        if output:
            with suppress(FileNotFoundError):
                there = real.stat()
                with suppress(OSError):  # only an administrator may give files away
                    os.chown(scratch, there.st_uid, there.st_gid)
                scratch.chmod(stat.S_IMODE(there.st_mode))
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
