"""Where reports go: the reporter is chosen and the place checked before anything runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookcli import registry
from hookcli.commands.options import Options, parse_depth
from hookcli.errors import HookcliError, UsageError, class_name, shortened, unknown
from hookcli.report import Column, Report, formatting
from hookcli.report.files import write_whole
from hookcli.report.grouping import View, arranged, fold
from hookcli.reporters.base import Reporter
from hookcli.system.files import followed, is_folder, is_stream
from hookcli.system.stdout import report_stream, require_stdout, write_report
from hookcli.system.streams import is_terminal, say, terminal_size
from hookcli.system.torchrun import world


class Output:
    """Writes reports as the options say. Raises UsageError at once where that can't work.

    `option` is the one that named the file, for what is said of it.
    """

    def __init__(self, options: Options, option: str = "--output") -> None:
        self.options = options
        self._option = option
        self.path = Path(options.output) if options.output and options.output not in _STDOUT else None
        if self.path:
            check_writable(self.path, option)
        self.name = _format(options.format, self.path, option)
        made = registry.load("reporters", self.name)
        with registry.guarded(made):
            self.reporter: Reporter = made()
        self._needs: tuple[str, ...] = getattr(self.reporter, "needs", ())
        if self.path is None:
            require_stdout()
        self.view = _view(options, self.path is None and is_terminal(report_stream()))

    def check_columns(self, columns: Sequence[Column]) -> None:
        """Raises UsageError for a column that the report will not have: before the run, not after."""
        arranged(Report("", "", columns, ()), self.view)
        self._require_suited(columns)

    def _require_suited(self, columns: Sequence[Column]) -> None:
        if not set(self._needs) <= {column.name for column in columns}:
            here = ", ".join(name for name in registry.names("reporters") if self._suits(name, columns))
            raise UsageError(
                f"--format {self.name}: {_SPECIAL.get(self.name, 'does not suit this report')}; here {here}"
            )

    def _suits(self, name: str, columns: Sequence[Column]) -> bool:
        try:
            needs = getattr(registry.load("reporters", name), "needs", ())
        except HookcliError:  # one that does not load suits nothing
            return False
        return set(needs) <= {column.name for column in columns}

    def write(self, reports: Sequence[Report], *, own: bool = False) -> None:
        """Write the reports; a file is complete or as it was before.

        Of several processes only the first writes, unless they are this one's `own`.
        """
        if not (own or world().writes):
            return
        shown = self._shown(reports)
        text = self._text(shown, self.view)
        if self.path is None:
            write_report(text)
            return
        _replace(self.path, text, self._option)
        rows = sum(len(report.rows) for report in shown)
        remark(f"wrote {self.path}: {formatting.counted(rows, 'row')}", self.options)

    def salvage(self, reports: Sequence[Report], *, own: bool = False) -> None:
        """Write what was measured before a failure, which is still to be told whatever becomes of this."""
        try:
            self.write(reports, own=own)
        except HookcliError as error:
            say(f"warning: {error}")

    def rendered(self, reports: Sequence[Report]) -> str:
        """The text of the reports, for a screen that they share."""
        height = self.view.height // max(len(reports), 1) if self.view.height else None
        return self._text(self._shown(reports), replace(self.view, height=height))

    def _text(self, reports: Sequence[Report], view: View) -> str:
        with registry.guarded(self.reporter):
            text: Any = self.reporter.render(reports, view)
            if not isinstance(text, str):
                raise TypeError(f"render() returned {class_name(text)}, not text")
        return text

    def _shown(self, reports: Sequence[Report]) -> list[Report]:
        for report in reports:
            self._require_suited(report.columns)
        folds = self.view.depth is not None and not self._needs
        return [arranged(fold(r, self.view.depth or 1) if folds else r, self.view) for r in reports]


def remark(text: str, options: Options) -> None:
    """Say something on stderr, unless it was asked to be quiet."""
    if not options.quiet and world().writes:
        say(text)


@contextmanager
def short_warnings(options: Options) -> Iterator[None]:
    """Warnings of the model's code as one line each; those about PyTorch's own use of PyTorch only with --debug."""
    with warnings.catch_warnings():
        if not options.debug:
            warnings.filterwarnings("ignore", module=r"(torch|torchvision)\.")
            warnings.showwarning = lambda message, category, *_: remark(
                f"warning: {category.__name__}: {str(message).strip().partition(chr(10))[0]}", options
            )
        yield


# Names of stdout, which a command keeps for its report: a file of such a name would be stderr meanwhile.
_STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
# Formats that show one kind of report alone.
_SPECIAL = {
    "dot": "draws what `hookcli graph` sees",
    "svg": "draws what `hookcli graph` sees",
    "chrome": "shows what `hookcli trace` sees, event by event",
    "chart": "draws what `hookcli show --over-time` finds",
    **dict.fromkeys(("junit", "sarif", "github"), "shows what `hookcli check` finds"),
}
_SUFFIXES = {
    ".txt": "table",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
    ".dot": "dot",
    ".gv": "dot",
    ".svg": "svg",
    ".xml": "junit",
    ".sarif": "sarif",
}


def _format(name: str | None, path: Path | None, option: str) -> str:
    if name is None:
        return _by_suffix(path, option) if path is not None else "table"
    if name not in registry.names("reporters"):
        raise UsageError(unknown("--format", name, registry.names("reporters")))
    return name


def _by_suffix(path: Path, option: str) -> str:
    """The format that a file name asks for by its suffix."""
    if path.suffix in _SUFFIXES:
        return _SUFFIXES[path.suffix]
    for plugin in registry.plugins("reporters"):  # of other distributions: ask them
        with suppress(HookcliError):  # one that does not load has no suffix
            if not (plugin.built_in or plugin.shadowed) and path.suffix in plugin.load().suffixes:
                return plugin.name
    how = " (or name the --format)" if option == "--output" else ""
    raise UsageError(f"{option} {path}: " + unknown("suffix", path.suffix, _SUFFIXES) + how)


def check_writable(path: Path, option: str = "--output") -> None:
    """Raises UsageError where the file can't be written.

    By doing it: permissions say little to an administrator, and nothing on a read-only file system.
    """
    import tempfile

    if is_folder(path):
        raise UsageError(f"{option} {path}: is a folder; give a file in it")
    if is_stream(path):
        return
    try:
        with suppress(FileNotFoundError):
            path.lstat()  # which tells a name that can't be
        with tempfile.TemporaryFile(dir=followed(path).parent):
            pass
    except (OSError, ValueError) as error:  # a NUL, and what the file system's encoding lacks, are ValueErrors
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{option} {shortened(str(path))}: can't write to {path.parent}/ ({why})") from error


def _replace(path: Path, text: str, option: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        write_report(text)  # what was measured is not lost
        raise UsageError(f"{option} {path}: {error.strerror}; the report went to stdout instead") from error


def _view(options: Options, terminal: bool) -> View:
    size = terminal_size(report_stream())
    color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return View(
        depth=parse_depth(options.depth),
        columns=[name.strip() for name in options.columns.split(",")] if options.columns else (),
        sort=options.sort,
        width=size.columns if terminal else None,
        height=size.lines if terminal else None,
        color=color,
    )
