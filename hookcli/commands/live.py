"""`hookcli run --live` and `--serve`: the record is exported, or served as a page, while the program runs.

A separate process reads the record as it grows, so this neither slows the program's steps nor makes it fail. That
process is not a child of the program, which may wait for all of its children.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from hookcli import registry
from hookcli.commands.options import Options
from hookcli.commands.output import Output
from hookcli.commands.report_serve import LivePage, PageServer, serves_page
from hookcli.commands.show_follow import export
from hookcli.errors import UsageError, unknown
from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.ranks.ranked_record import folder_of
from hookcli.record.file.tail import tail_of
from hookcli.record.file.views.query import Query
from hookcli.reporters import selection
from hookcli.system.escaping import shell_path
from hookcli.system.files import content, is_folder, is_stream
from hookcli.system.streams import STDERR, say

_PAUSE = 0.25  # seconds
_LAST_LOOK = 5  # seconds
_NICER = 10


def check_live(text: str) -> None:
    """Raise UsageError unless FORMAT, or FORMAT=FOLDER, names a format that grows with a record and is installed."""
    name = text.partition("=")[0]
    if name not in selection.live():
        raise UsageError(unknown("--live", name, selection.live()))
    made = selection.by_name(name)
    with registry.guarded(made):
        made()


def live_export(text: str, files: RecordFiles) -> tuple[str, Callable[[], None]]:
    """A remark, and a function that starts the export of this record, until the program that this process becomes ends.

    By default a record NAME.run.jsonl goes to the folder runs/NAME, numbered; for a format that adds to a folder, here.
    Raises UsageError, before the program starts, if it can't be written.
    """
    name, _, folder = text.partition("=")
    if is_stream(files.record):
        raise UsageError(f"--live {name}: can't read {files.record}, a pipe or device; name a file with --output")
    adds = selection.declared(selection.by_name(name), "target") == "folder"
    default = Path()
    if not adds:
        first = Path("runs", files.folder.name.removesuffix(".run"))
        folders = itertools.chain([first], (first.with_name(f"{first.name}-{n}") for n in itertools.count(2)))
        default = next(each for each in folders if not (is_folder(each) and any(each.iterdir())))
    output = Output(Options(format=name, output=folder or str(default), quiet=True), "--live")
    remark = f"steps are exported to {output.path} while the program runs; {output.then}"
    return remark, lambda: _start(partial(_export, output, files))


def live_page(port: int, files: RecordFiles) -> tuple[str, Callable[[], None]]:
    """A remark, and a function that starts serving the page of this record. Raises UsageError if the port is taken."""
    server = page_server(port)

    def serve(over: Callable[[], bool]) -> None:
        if path := _awaited(files, over):
            server.live = LivePage(path)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            while not over():
                time.sleep(_PAUSE)
            time.sleep(_LAST_LOOK)

    return f"the page of this run is at {server.address} while it goes on", lambda: _start(serve, keep=server.fileno())


def page_server(port: int) -> PageServer:
    """Make the server of a page, as soon as no run that has just ended keeps the port for its last look.

    Raises UsageError if the port is taken.
    """
    patience = time.monotonic() + 2 * _LAST_LOOK
    while serves_page(port) and time.monotonic() < patience:
        time.sleep(_PAUSE)
    return PageServer(port, "--serve")


def _start(work: Callable[[Callable[[], bool]], None], keep: int = STDERR) -> None:
    """Start a process beside the program; `work` gets a function that tells if that has ended, and keeps file `keep`.

    The process runs in a separate session, so that Ctrl-C doesn't end it before the last steps. It keeps no stream open
    but a terminal's stderr: the reader of a pipe would wait for it.
    """
    program = os.getpid()
    child = os.fork()
    if child:
        os.waitpid(child, 0)  # which ends at once: the process that it leaves is not a child of the program
        return
    status = 1
    try:
        os.setsid()
        if not os.fork():
            os.closerange(STDERR + 1, keep)
            os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
            os.nice(_NICER)
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, *([] if os.isatty(STDERR) else [STDERR])):
                os.dup2(null, number)
            work(lambda: not _runs(program))
        status = 0
    finally:
        os._exit(status)


def _export(output: Output, files: RecordFiles, over: Callable[[], bool]) -> None:
    """Export the record once its file, or the folder of its ranks, holds something."""
    try:
        if not (path := _awaited(files, over)):
            files.release()  # of a command that ran no Python
            return
        export(tail_of(path), Query(), output, over)
    except Exception as error:
        say(f"warning: --live ended: {error}; `hookcli show {shell_path(files.record)}` exports all of the record")


def _awaited(files: RecordFiles, over: Callable[[], bool]) -> Path | None:
    """The record, or the folder of its ranks, once it holds something; None if the program ends before."""
    while True:
        with suppress(OSError):
            if files.record.stat().st_size:
                return files.record
        if (folder := folder_of(files.record)) or over():
            return folder
        time.sleep(_PAUSE)


def _runs(process: int) -> bool:
    """Return whether the process is still there, and not just waited for."""
    try:
        os.kill(process, 0)
        state = content(f"/proc/{process}/stat").rpartition(b")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (OSError, IndexError):  # of another user by now, or no /proc
        return True
    return state not in (b"Z", b"X")
