"""The file of a report page: named and checked before the run, written and opened after it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hookcli.commands.options import Options
from hookcli.commands.output import Output, remark
from hookcli.errors import HookcliError, UsageError
from hookcli.reporters.html.page import page
from hookcli.system.files import exists, is_file, opened
from hookcli.table import Report

_LETTERS = 200  # of a page's name
_HEAD = 1024  # bytes in which a page says that hookcli wrote it
_MARK = b'<meta name="generator" content="hookcli '


class Page:
    """Output of `hookcli report`: a file named after the targets unless --output or --format says otherwise.

    Raises UsageError for a file that can't be written, for one of that name that is not a page of hookcli's, and if the
    page shall be opened but is none.
    """

    def __init__(self, targets: Sequence[str], options: Options, *, opens: bool = False) -> None:
        self.options = options
        if not (options.output or options.format):
            lasts = (re.split(r"[:/\\]", target.rstrip("/"))[-1] for target in targets)
            stems = (re.sub(r"(\.run)?\.(jsonl?|pt2?(pkg)?)$|\.run$", "", last) for last in lasts)
            name = "-".join(filter(None, (re.sub(r"[^\w.-]+", "_", stem).strip(".")[:100] for stem in stems)))
            path = Path(f"{name[:_LETTERS] or 'report'}.html")
            head = b""
            with suppress(OSError):
                if is_file(path):
                    with opened(path) as file:
                        head = bytes(file.read(_HEAD))
            if exists(path) and _MARK not in head:
                raise UsageError(f"{path} exists and is not a page of hookcli's; name the file to write with --output")
            self.options = replace(options, output=str(path))
        self._opens = opens
        self.output = Output(self.options, default="html")
        if opens and (self.output.path is None or self.output.name != "html"):
            raise UsageError("--open: opens a page in a file; leave out --format, and --output or its suffix")

    def write(self, reports: Sequence[Report], parts: str = "", error: HookcliError | None = None) -> None:
        """Write the reports, of which a page says that it is of `parts`, and open the file if asked to."""
        self.output.write(reports, mixed=True, parts=parts, error=error)
        self._open()

    def write_payload(self, payload: Mapping[str, object], parts: str) -> None:
        """Write the page of a payload that holds more than reports, and open the file if asked to."""
        self.output.write_text(page(payload, self.output.view), parts)
        self._open()

    def _open(self) -> None:
        if self._opens and self.output.path:
            open_in_browser(self.output.path.resolve().as_uri(), str(self.output.path), self.options)


def open_in_browser(address: str, name: str, options: Options) -> None:
    """Open an address in the user's browser; without one a remark says what to open, by its name."""
    import webbrowser

    if not webbrowser.open(address):
        remark(f"no browser found: open {name}", options)
