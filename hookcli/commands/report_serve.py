"""Serves the page of a growing record on this machine: `hookcli report RECORD --serve`."""

from __future__ import annotations

import errno
import json
import operator
import re
import sys
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import parse_qs

from hookcli.commands.options import Options
from hookcli.commands.progress import Progress
from hookcli.commands.report_file import open_in_browser
from hookcli.commands.report_pages import progress_of
from hookcli.errors import UsageError, shortened
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.tail import tail_of
from hookcli.reporters.html.page import page
from hookcli.system import interrupts
from hookcli.system.escaping import visible
from hookcli.system.files import exists, is_pipe
from hookcli.system.streams import say

_HOST = "127.0.0.1"
_SECONDS = 2  # between two looks of the page
_MOST_THREADS = 32  # connections that are answered at the same time
_PATIENCE = 10  # seconds without a word from the other side, after which a connection is closed
_ANSWERS = 5  # seconds within which a page of hookcli's own answers
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})+")


def serve_record(name: str, port: int | None, options: Options, *, opens: bool = False) -> int:
    """Serve a record's page until Ctrl-C, also of one that does not exist yet. Raises UsageError."""
    path = Path(name)
    if is_pipe(path):
        raise UsageError(f"--serve {path}: is a pipe, which is shown once it ends; leave out --serve")
    with closing(LivePage(path)) as live, PageServer(port) as server:
        server.live = live
        with Progress(options.quiet) as progress:
            progress.stage(f"reading {path}")
            live.look(progress)
        waiting = "" if exists(live.path) else "; the record does not exist yet"
        say(visible(f"{path} is at {server.address} (Ctrl-C ends it){waiting}"))
        if opens:
            open_in_browser(server.address, server.address, options)
        server.serve_forever()
    return 0


class LivePage:
    """The page of a record that grows: reads new lines when it is asked for. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._tail = tail_of(path)
        self.path = self._tail.path
        self._lock = Lock()
        self._run = 0
        self._steps = RecordPage(self._tail.record)

    def look(self, progress: Progress | None = None) -> None:
        """Read what the record has by now; a new run that replaces it, and one too long for its page, begin anew."""
        self._tail.poll()
        record = self._tail.record
        if record is not self._steps.record or self._steps.is_full:
            self._run += 1
            self._steps = RecordPage(record)
        self._steps.take(*([progress_of(progress, record)] if progress else []))

    @property
    def _version(self) -> str:
        """The run, how many lines there are of it, and the number of steps of each track: 1.62.60.6."""
        return ".".join(map(str, (self._run, self._tail.record.lines, *self._steps.counts())))

    def html(self) -> str:
        """The page, with everything until now."""
        with self._lock:
            self.look()
            live = {"path": "steps", "seconds": _SECONDS, "version": self._version}
            return page(self._steps.payload(live))

    def news(self, have: str) -> str | None:
        """The steps that came after a version's, as JSON; "" if there are none, None for another run's."""
        with self._lock:
            self.look()
            if have == self._version:
                return ""
            run, _, *sent = map(int, have.split("."))
            counts = [*self._steps.counts(), *[0] * len(sent)]
            if run != self._run or any(map(operator.gt, sent, counts)):
                return None
            payload = self._steps.payload({}, sent[: len(self._steps.counts())])
            shown = {key: value for key, value in payload.items() if key not in ("schema", "kind", "title", "live")}
            news = {"version": self._version, **shown}
            return json.dumps(news, allow_nan=False)

    def close(self) -> None:
        """Close the record."""
        self._tail.close()


class PageServer(ThreadingHTTPServer):
    """Serves the `live` page, which is set before it serves. Raises UsageError, naming the `option`, for the port."""

    daemon_threads = True
    request_queue_size = (
        _MOST_THREADS  # connections that wait to be accepted, while the program keeps this thread waiting
    )
    live: LivePage

    def __init__(self, port: int | None, option: str = "--port") -> None:
        self._room = BoundedSemaphore(_MOST_THREADS)
        try:
            super().__init__((_HOST, port or 0), _Handler)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            why = "is in use by another program" if in_use else f"can't be used ({error.strerror})"
            advice = "name another one, or leave it out for a free one"
            raise UsageError(f"{option} {port}: {why}; {advice}") from error
        self.address = f"http://{_HOST}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection if too many are open."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer in this thread, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: object) -> None:
        # An OSError comes from a browser that has closed the connection; Ctrl-C may break off the start of a thread.
        if not (isinstance(sys.exception(), OSError) or interrupts.came()):
            super().handle_error(request, client_address)


def serves_page(port: int) -> bool:
    """Return whether hookcli answers at this port of this machine."""
    try:
        with closing(HTTPConnection(_HOST, port, timeout=_ANSWERS)) as connection:
            connection.request("HEAD", "/")
            return connection.getresponse().getheader("Server") == _Handler.server_version
    except (OSError, HTTPException):
        return False


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and for its news, to a browser that asks for this machine by its own name.

    Other methods are errors (501), which the base class answers.
    """

    server: PageServer
    timeout = _PATIENCE
    server_version = "hookcli"

    def do_GET(self) -> None:
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (_HOST, "localhost")}:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "another host's name: see the address on stderr")
            return
        path, _, query = self.path.partition("?")
        try:
            if path == "/":
                self._answer(HTTPStatus.OK, "text/html", self.server.live.html())
            elif path == "/steps":
                have = parse_qs(query).get("have", [""])[0]
                if not _VERSION.fullmatch(have):
                    wrong = f"have={shortened(have, 40)}: give the version of a page, as in 1.62.60.6"
                    self._answer(HTTPStatus.BAD_REQUEST, "text/plain", visible(wrong))
                    return
                news = self.server.live.news(have)
                status = HTTPStatus.RESET_CONTENT if news is None else HTTPStatus.OK if news else HTTPStatus.NO_CONTENT
                self._answer(status, "application/json", news or "")
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "only / and /steps are here")
        except (UsageError, OSError) as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", visible(str(error)))

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return self.server_version

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing on stderr."""


_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
