"""The file or folder that a command writes: checked before the work, and written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hookcli.errors import UsageError, shortened
from hookcli.system import interrupts
from hookcli.system.files import exists, followed, is_folder, is_stream, replacing, scratch_beside

FOLDERS = ("folder", "new folder")


def check_target(path: Path, option: str, target: str) -> None:
    """Raise UsageError if the file or folder (an Exporter's `target`) can't be written, or has something to lose.

    The folders above a folder must exist, unless they are to be made below the working directory.
    """
    if target not in FOLDERS:
        check_writable(path, option)
        return
    if exists(path) and not is_folder(path):
        raise UsageError(f"{option} {path}: is a file; this format writes a folder")
    if target == "new folder" and is_folder(path) and any(path.iterdir()):
        raise UsageError(f"{option} {path}: is not empty; name another folder, or delete this one first")
    there = path / "new"
    while not exists(there.parent):
        there = there.parent
    if there not in (path, path / "new") and not there.resolve().is_relative_to(Path.cwd()):  # perhaps a slip
        raise UsageError(f"{option} {shortened(str(path))}: no folder {there}/; make it first")
    check_writable(there, option)


def check_writable(path: Path, option: str = "--output") -> None:
    """Raises UsageError if the file can't be written: by trying, since permissions say little to an administrator."""
    import tempfile

    if is_folder(path):
        raise UsageError(f"{option} {path}: is a folder; give a file in it")
    if is_stream(path):
        return
    try:
        with suppress(FileNotFoundError):
            path.stat()  # which tells a name that can't be, and links that lead in a circle
        with tempfile.TemporaryFile(dir=followed(path).parent):
            pass
    except (OSError, ValueError) as error:  # a NUL, and what the file system's encoding lacks, are ValueErrors
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{option} {shortened(str(path))}: can't write to {path.parent}/ ({why})") from error


@contextmanager
def written(path: Path, target: str) -> Iterator[Path]:
    """Yield the path to write to. A file or new folder is moved to `path` if the block ends without an exception.

    Folders above a folder are made. A folder that this makes does not stay after an interrupt. Raises OSError.
    """
    if target not in FOLDERS:
        with replacing(path) as scratch:
            yield scratch
        return
    real = followed(path)
    if target == "folder":
        new = not exists(real)
        real.mkdir(parents=True, exist_ok=True)
        try:
            yield real
            interrupts.finish()
        except KeyboardInterrupt:
            if new:
                interrupts.delete(real)
            raise
        return
    real.parent.mkdir(parents=True, exist_ok=True)
    with scratch_beside(real) as scratch:
        scratch.mkdir()
        yield scratch
        interrupts.finish()
        scratch.rename(real)  # which may be an empty folder
