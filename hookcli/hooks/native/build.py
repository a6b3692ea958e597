"""Build the C++ hooks with torch.utils.cpp_extension, once for each torch, Python and state of the sources.

The library stays in the user's cache folder. Loading it from there needs no compiler, and does not import
cpp_extension.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from hookcli import tensors
from hookcli.errors import UsageError, shortened
from hookcli.system.cache import user_cache
from hookcli.system.files import content
from hookcli.system.streams import logged_from

SOURCES = (
    *(Path(__file__).with_name(name) for name in ("timeline.cpp", "hooks.h", "state.h", "moments.h")),
    *(Path(tensors.__file__).with_name(name) for name in ("moments.h", "widen.h", "lanes.h", "vectors.h")),
)
FLAGS = ("-O3", "-Wno-psabi")  # no notes about vectors as arguments, which nothing here passes
_NAME = "hookcli_native"
_GIVES_WAY = 5.0  # seconds that ninja has to end its compilers
_TRUSTED = (0,)  # users who can do anything on this machine anyway

_loading = threading.Lock()
_loaded: object = None


def load(on_build: Callable[[str], None] | None = None) -> Any:
    """Return the namespace of the extension's classes: loaded once per process, built if the cache does not have it.

    `on_build` gets one sentence before a build starts. Raises UsageError if there is no compiler or no ninja, if the
    cache can't be written, and if the build fails: with the compiler's first error, and its log as a note of the
    exception's cause.
    """
    global _loaded
    with _loading:
        if _loaded is None:
            torch.ops.load_library(_library(on_build))
            _loaded = getattr(torch.classes, _NAME)
    return _loaded


def cache_folder() -> Path:
    """Return the folder of this build, named by torch, Python's ABI, the machine, and a hash of sources and flags."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in SOURCES:
        digest.update(content(source))
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    key = f"torch-{torch.__version__}-{abi}-{platform.machine()}-{digest.hexdigest()[:16]}"
    return user_cache() / "native" / re.sub(r"[^\w.+-]", "_", key)


def compiler() -> str | None:
    """The C++ compiler that a build would call: what CXX names, else the first of c++, g++ and clang++ on PATH."""
    if named := os.environ.get("CXX"):
        return named if shutil.which(named) or any(map(shutil.which, shlex.split(named)[:1])) else None
    return next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def _library(on_build: Callable[[str], None] | None) -> str:
    folder = cache_folder()
    stamp = folder / "built"  # written last, so that a build that was killed counts as none
    try:
        if not stamp.exists():
            chosen = compiler()
            if chosen is None:
                named = os.environ.get("CXX")
                what = f"CXX={named} is not a program" if named else "no c++, g++ or clang++ on PATH"
                raise UsageError(f"building the C++ hooks, on first use, needs a C++ compiler: {what}")
            with _ninja_on_path():
                if not shutil.which("ninja"):
                    raise UsageError("building the C++ hooks, on first use, needs ninja: pip install 'hookcli[native]'")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_others(folder)
            _build_alone(folder, stamp, chosen, on_build)
        library = folder / content(stamp, 4096, folder).decode("utf-8", "replace").strip()
        if library.parent != folder or library.is_symlink() or not library.is_file():
            named = shortened(str(library), 80)
            raise UsageError(f"{stamp} names {named!r}, which is not a file in this folder: delete {folder}")
        for path in (folder, stamp, library):
            _refuse_others(path)
        return str(library)
    except OSError as error:
        raise UsageError(f"the C++ hooks are built in {folder}, which can't be used: {error.strerror}") from error


def _refuse_others(path: Path) -> None:
    """Raise UsageError for a folder or file that others may write: code loaded from there runs as this user."""
    status = path.lstat()
    if not hasattr(os, "getuid"):
        return
    if status.st_uid not in (os.getuid(), *_TRUSTED):
        raise UsageError(f"{path} belongs to another user: C++ hooks are not loaded from there; delete it")
    if stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"others may write {path}: C++ hooks are not loaded from there; chmod go-w or delete it")


def _build_alone(folder: Path, stamp: Path, chosen: str, on_build: Callable[[str], None] | None) -> None:
    """Build, unless another process has done so while this one waited for the lock."""
    from filelock import FileLock  # comes with torch

    umask = os.umask(0o077)  # only this user may write the files
    try:
        with FileLock(folder / "hookcli.lock"):
            if stamp.exists():
                return
            if on_build:
                on_build(f"building the C++ hooks with {chosen}: once, for about 15 seconds")
            (folder / "lock").unlink(missing_ok=True)  # torch 2.11 would wait forever for a build that was killed
            library = Path(_compile(folder, chosen))
            scratch = stamp.with_suffix(f".{os.getpid()}")
            scratch.write_text(library.name, "utf-8")
            scratch.replace(stamp)
    finally:
        os.umask(umask)


def _compile(folder: Path, chosen: str) -> str:
    remarks_on_cuda = logged_from(logging.ERROR, "torch.utils.cpp_extension")  # which the C++ hooks do not use
    with _ninja_on_path(), patch.dict(os.environ, CXX=chosen), remarks_on_cuda:
        from torch.utils import cpp_extension

        try:
            with patch.object(cpp_extension, "subprocess", _Grouped()):
                library = cpp_extension.load(
                    _NAME,
                    [str(SOURCES[0])],
                    extra_cflags=list(FLAGS),
                    build_directory=str(folder),
                    is_python_module=False,
                )
        except RuntimeError as error:
            error.add_note(str(getattr(error.__cause__, "output", b"") or b"", "utf-8", "replace"))
            lines = [line.strip() for line in str(error).splitlines()]
            pattern = re.compile(r"\b(fatal error|error|not found)\b", re.IGNORECASE)
            errors = (line for line in lines if pattern.search(line[1:]))
            # The first line is torch's own "Error building extension ...", without the reason.
            why = next((line for line in errors if not line.startswith("Error building")), (lines or ["no reason"])[0])
            raise UsageError(f"the C++ hooks could not be built with {chosen}: {why}") from error
    return str(library)


class _Grouped:
    """The module subprocess, with a `run` that starts the program in a new session.

    An interrupt then reaches only this process, which ends the program and all that it has started.
    """

    def __getattr__(self, name: str) -> object:
        return getattr(subprocess, name)

    def run(self, command: Any, *, check: bool = False, **settings: Any) -> subprocess.CompletedProcess[object]:
        """Run a program in a new session, and end it if this process is interrupted."""
        with subprocess.Popen(command, start_new_session=True, **settings) as process:
            try:
                output, _ = process.communicate()
            except BaseException:
                process.terminate()  # ninja passes it on to the compilers, which are in other process groups
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GIVES_WAY)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        if check and process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, output)
        return subprocess.CompletedProcess(command, process.returncode, output)


def _ninja_on_path() -> AbstractContextManager[object]:
    """Add Python's scripts folder to PATH: PyPI's ninja is there, also if hookcli was called by its full path."""
    folders = [os.environ.get("PATH", ""), sysconfig.get_path("scripts")]
    return patch.dict(os.environ, PATH=os.pathsep.join(filter(None, folders)))
