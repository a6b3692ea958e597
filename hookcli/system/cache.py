"""A store of computed results in the user's cache folder; losing an entry costs only the time to compute it again."""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from hookcli.system.files import SCRATCH, content, opened, replacing, unzipped

_MIB = 2**20
_BLOCK = 2**18
_LARGEST = 2**28  # bytes of an unpacked entry
_KEPT = 0.75  # of the bound, once entries had to be deleted: so that not every `put` has to delete some
# A user without a home is a RuntimeError, a cache folder of an impossible name a ValueError.
_FAILURES = (OSError, ValueError, RuntimeError)
_BEGUN = time.time()  # before the models' code is imported
_ABANDONED = 3600.0  # seconds after which a scratch file is taken for one whose process was killed


def user_cache() -> Path:
    """Return hookcli's folder in this user's cache: below ~/.cache, ~/Library/Caches or %LOCALAPPDATA%, by the system.

    But for Windows, XDG_CACHE_HOME comes first if it is an absolute path (XDG Base Directory Specification). Raises
    RuntimeError if this user has no home, FileNotFoundError if the home is a relative path.
    """
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "hookcli" / "Cache"
    elif (chosen := Path(os.environ.get("XDG_CACHE_HOME", ""))).is_absolute():
        folder = chosen / "hookcli"
    else:
        folder = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "hookcli"
    if not folder.is_absolute():  # as of HOME=~ in quotes
        raise FileNotFoundError(folder)
    return folder


class Cache:
    """Texts by key in one folder of the user's cache, each in a compressed file.

    Entries are written whole, so several processes may use the folder at once. An entry that is damaged or can't be
    read counts as absent. `bound` is the size of all entries in bytes; the least recently used are deleted. Where
    nothing can be written (a read-only folder, a full disk, no home) nothing is kept. No method raises.
    """

    def __init__(self, name: str, bound: int = 32 * _MIB) -> None:
        self._name = name
        self._bound = bound

    def get(self, key: str) -> str | None:
        """Return the text that was put under this key; None if there is none."""
        with suppress(*_FAILURES):
            path = self._path(key)
            # The stream ends with a checksum, and begins with the key since two keys may share a file's name.
            packed = content(path, self._bound, path.parent)
            stored_key, _, text = unzipped(packed, _LARGEST).decode("utf-8", "surrogateescape").partition("\0")
            if stored_key == key:
                with suppress(OSError):  # a read-only folder
                    os.utime(path)  # the time of its last use
                return text
        return None

    def put(self, key: str, text: str) -> None:
        """Keep a text under this key, which contains no NUL, in place of an earlier one.

        Deletes the least recently used entries where all of them exceed the bound, and abandoned scratch files.
        """
        with suppress(*_FAILURES):
            path = self._path(key)
            whole = f"{key}\0{text}".encode("utf-8", "surrogateescape")
            packed = zlib.compress(whole, 1)
            if len(packed) > self._bound * _KEPT or len(whole) > _LARGEST:
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path, output=False) as scratch:
                scratch.write_bytes(packed)
            entries = []
            for entry in path.parent.iterdir():
                with suppress(OSError):  # another process may delete it
                    status = entry.stat(follow_symlinks=False)
                    entries.append((status.st_mtime, status.st_size, entry))
            entries.sort()
            size = sum(each for _, each, _ in entries)
            excess = size - self._bound * _KEPT if size > self._bound else 0
            for used, each, entry in entries:
                is_scratch = entry.name.startswith(SCRATCH)
                if time.time() - used > _ABANDONED if is_scratch else excess > 0:
                    entry.unlink(missing_ok=True)
                    excess -= each

    def _path(self, key: str) -> Path:
        """The file of a key. Raises one of `_FAILURES` if this user has no cache folder."""
        text = key.encode("utf-8", "surrogateescape")
        return user_cache() / self._name / f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}"


def stamp(files: Iterable[str | Path]) -> str:
    """Identify these files by what they hold: clocks and sizes may be the same after an edit."""
    from hashlib import sha256

    digest = sha256()
    for path in files:
        with suppress(OSError), opened(path, buffering=0) as file:
            digest.update(f"\0{path}\0".encode("utf-8", "surrogateescape"))
            for block in iter(partial(file.read, _BLOCK), b""):
                digest.update(block)
    return digest.hexdigest()


def python_files(folder: str | Path) -> list[str]:
    """Return the Python files below a folder."""
    walked = ((root, name) for root, _, files in os.walk(folder) for name in files if name.endswith(".py"))
    return sorted(os.path.join(root, name) for root, name in walked)  # noqa: PTH118


def imported(folders: Iterable[Path]) -> list[str] | None:
    """Return the Python files below these folders that this process imported; None if one was edited since."""
    below = tuple(os.path.join(folder, "") for folder in folders)  # noqa: PTH118
    named = {str(getattr(module, "__dict__", {}).get("__file__")) for module in [*sys.modules.values()]}
    files = sorted(name for name in named if name.endswith(".py") and name.startswith(below))
    with suppress(OSError):  # deleted
        if all(os.stat(name).st_ctime < _BEGUN for name in files):  # noqa: PTH116
            return files
    return None
