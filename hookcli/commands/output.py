"""The output of reports: the reporter is chosen and the file checked before anything runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookcli import registry
from hookcli.commands.destination import check_target, written
from hookcli.commands.options import Options
from hookcli.errors import HookcliError, UsageError, class_name, unknown
from hookcli.reporters import selection
from hookcli.system import interrupts, streams
from hookcli.system.escaping import shell_path
from hookcli.system.stdout import report_stream, require_stdout, write_report
from hookcli.system.streams import asked, is_terminal, piped_width, say, takes_color, terminal_size
from hookcli.system.torchrun import world
from hookcli.table import Column, Report, formatting
from hookcli.table.columns import find_column
from hookcli.table.files import write_whole
from hookcli.table.grouping import View, apply_view, parse_depth, shown


class Output:
    """Writes reports as the options say. Raises UsageError at once if that can't work.

    `option` is the one that named the file, for messages. `default` is the format for people, where none is named.
    """

    def __init__(self, options: Options, option: str = "--output", default: str = "table") -> None:
        self.options = options
        self._option = option
        self.path = Path(options.output) if options.output and options.output not in _STDOUT else None
        self.name = options.format or default
        if self.path and not options.format:
            check_target(self.path, option, "file")  # a folder has no suffix
            by_suffix = selection.by_suffix(self.path.suffix)
            if by_suffix is None:
                how = " (or name the --format)" if option == "--output" else ""
                wrong = unknown("suffix", self.path.suffix, selection.suffixes())
                raise UsageError(f"{option} {self.path}: {wrong}{how}")
            self.name = default if by_suffix == "table" else by_suffix
        made = selection.by_name(self.name)
        self.exports = selection.exports(made)
        self._as = _check_suffix(self.path, options.format, option)
        self._target = selection.declared(made, "target")
        if self.path:
            check_target(self.path, option, self._target)
        with registry.guarded(made):
            self._reporter: Any = made()
        self.for_people: bool = self.path is None and selection.declared(self._reporter, "for_people")
        self.with_figures: bool = selection.declared(self._reporter, "with_figures")
        if self.path is None:
            if self.exports:
                raise UsageError(f"--format {self.name}: name the {self._target} to write, with {option}")
            require_stdout()
        self.view = _view(options, self.path is None and is_terminal(report_stream()))

    @property
    def takes_errors(self) -> bool:
        """True if the report is for a terminal, or one pipe or file, that also gets remarks: what it says need not be
        said again.
        """
        remarks = streams.remarks or sys.stderr
        if not self.for_people or is_terminal(remarks):
            return self.for_people and self.view.height is not None
        with suppress(Exception):  # a stream may be of any class
            return os.path.sameopenfile(require_stdout().fileno(), remarks.fileno())
        return False

    def check_columns(self, columns: Sequence[Column]) -> None:
        """Raise UsageError, before the run, for a column that the report will not have."""
        apply_view(Report("", "", columns, ()), self.view)
        self._require_suited(columns)

    def _require_suited(self, columns: Sequence[Column]) -> None:
        if missing := selection.missing(self._reporter, columns):
            *others, last = [f"`{command}`" for command in selection.commands(self._reporter)] or [""]
            commands = f"{', '.join(others)} or {last}" if others else last
            lacks = f"this report has no column {' or '.join(missing)}"
            why = f"only for {commands} ({lacks})" if commands else lacks
            raise UsageError(f"--format {self.name}: {why}; choose from: {', '.join(selection.suited(columns))}")
        if hasattr(self._reporter, "check"):  # which raises UsageError if it can't show these columns here
            self._reporter.check(columns)

    def takes(self, columns: Sequence[Column]) -> bool:
        """True if the format shows reports with these columns beside others."""
        return not self.exports and not selection.missing(self._reporter, columns)

    def draws(self, columns: Sequence[str]) -> bool:
        """True if the format is only for certain reports, and those with these columns are among them."""
        return tuple(columns) in selection.needed(self._reporter)

    def write(
        self,
        reports: Iterable[Report],
        *,
        own: bool = False,
        mixed: bool = False,
        growing: bool = False,
        parts: str = "",
        error: HookcliError | None = None,
    ) -> None:
        """Write the reports; a file is complete or as it was before. JSON also has the `error` that ends the command.

        Of several processes only the first writes, unless they are this one's `own`. `mixed` reports are of several
        kinds: each keeps the chosen columns that it has. `growing`: more come, and others may read an export
        meanwhile. `parts` says what a page is of, if not of reports.
        """
        if not (own or world().writes):
            return
        if error and self.name == "json":
            self._reporter.error = error.to_dict()
            error.documented |= self.path is None
        if self.exports:
            self._export(self._shown(reports, mixed), growing)
            return
        shown = list(self._shown(reports, mixed))
        rows = formatting.counted(sum(len(report.rows) for report in shown), "row")
        counted = f"{len(shown)} reports, {rows}" if len(shown) > 1 else rows
        self.write_text(self._text(shown, self.view), parts if parts and self.name == "html" else counted)

    def write_text(self, text: str, parts: str) -> None:
        """Write a text of the chosen format; a remark says where, and of which `parts` it is."""
        if self.path is None:
            write_report(text)
            return
        try:
            write_whole(self.path, text)
        except OSError as error:
            write_report(text)  # what was measured is not lost
            lost = f"{self._option} {self.path}: {error.strerror}"
            raise UsageError(f"{lost}; the report went to stdout instead") from error
        remark("; ".join(filter(None, [f"wrote {self.path}{self._as}: {parts}", self.then])), self.options)

    def _export(self, reports: Iterable[Report], growing: bool) -> None:
        assert self.path is not None
        rows = 0

        def counted() -> Iterator[Report]:
            nonlocal rows
            for report in reports:
                rows += len(report.rows)
                yield report

        try:
            target = nullcontext(self.path) if growing else written(self.path, self._target)
            with target as path, registry.guarded(self._reporter):
                self._reporter.export(counted(), self.view, path)
        except OSError as error:
            raise UsageError(f"{self._option} {self.path}: {error.strerror or error}") from error
        wrote = f"wrote {self.path}: {formatting.counted(rows, 'row')}"
        remark("; ".join(filter(None, [wrote, self.then])), self.options)

    @property
    def then(self) -> str:
        """The advice on how to open the file."""
        return str(selection.declared(self._reporter, "then")).replace("{path}", shell_path(self.path))

    def salvage(self, reports: Sequence[Report], *, own: bool = False) -> None:
        """Write what was measured before a failure; after an interrupt only to stdout. Never raises."""
        error = sys.exception()
        if self.path and interrupts.came(error):
            return
        try:
            self.write(reports, own=own, error=error if isinstance(error, HookcliError) else None)
        except HookcliError as error:
            say(f"warning: {error}")

    def rendered(self, reports: Sequence[Report]) -> str:
        """The text of reports that share one screen."""
        height = self.view.height // max(len(reports), 1) if self.view.height else None
        return self._text(list(self._shown(reports)), replace(self.view, height=height))

    def _text(self, reports: Sequence[Report], view: View) -> str:
        with registry.guarded(self._reporter):
            text: Any = self._reporter.render(reports, view)
            if not isinstance(text, str):
                raise TypeError(f"render() returned {class_name(text)}, not text")
        return text

    def _shown(self, reports: Iterable[Report], mixed: bool = False) -> Iterator[Report]:
        folds = not any(selection.needed(self._reporter))  # a reporter that requires columns gets every row
        for report in reports:
            self._require_suited(report.columns)
            view = self.view
            if mixed:
                columns = [name for name in view.columns if _has(report, name)]
                sort = view.sort if view.sort and _has(report, view.sort.removeprefix("-")) else None
                view = replace(view, columns=columns, sort=sort)
            if not self.view.columns or view.columns:  # else it has none of those chosen
                yield shown(report, view, folds=folds)


def _has(report: Report, name: str) -> bool:
    """True if the report has a column that is called so."""
    with suppress(UsageError):
        return bool(find_column("", name, report.columns))
    return False


def remark(text: str | None, options: Options) -> None:
    """Write a remark, if there is one, to stderr, unless --quiet was given."""
    if text and not options.quiet and world().writes:
        say(text)


# Names of stdout. During a command stdout points to stderr, so opening one of these would write to stderr.
_STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def _check_suffix(path: Path | None, name: str | None, option: str) -> str:
    """Return " as FORMAT" if the suffix is of another text format, else "". Raises UsageError if one is not text."""
    other = selection.by_suffix(path.suffix) if path and path.suffix else None
    if path is None or name is None or other in (None, name):
        return ""
    made = selection.by_name(name)
    if path.suffix in selection.declared(made, "suffixes"):
        return ""
    if selection.exports(made) or selection.exports(selection.by_name(other)):
        raise UsageError(f"--format {name} and {option} {path}: {path.suffix} is for {other}; leave one of the two out")
    return f" as {name}"


def _view(options: Options, terminal: bool) -> View:
    size = terminal_size(report_stream())
    return View(
        depth=parse_depth(options.depth),
        columns=[name.strip() for name in options.columns.split(",")] if options.columns else (),
        sort=options.sort,
        width=size.columns if terminal else asked("COLUMNS") or piped_width(report_stream()),
        height=size.lines if terminal else None,
        color=terminal and takes_color(report_stream()),
        bars=terminal,  # programs that read columns would take them for one
    )
